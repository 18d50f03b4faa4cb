"""Federations with faults: clients that fail by a script (`chaos`), and a proxy that counts bytes (`proxy`)."""
