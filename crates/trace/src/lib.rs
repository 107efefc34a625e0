//! Routing-trace files: which experts a model chose, token by token
