"""Federations with faults: clients that fail by a script (`chaos`), clients that attack (`byzantine`), and a proxy that counts
bytes (`proxy`).
"""
