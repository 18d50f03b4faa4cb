"""Differential privacy: mechanisms that clip and add noise, and a ledger of what they cost."""
