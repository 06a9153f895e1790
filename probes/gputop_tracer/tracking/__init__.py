"""The event log: storages that live while the tracker is on, and where they belong."""
