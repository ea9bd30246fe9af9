"""`widemargin selftest`: what the package promises under faults, bad input and attacks, tried on this machine."""
