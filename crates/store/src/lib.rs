//! Expert slots and table rows read from disk into bounded memory
