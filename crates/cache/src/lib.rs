//! Eviction policies and a residency table for batches that must be resident together
