//! Model architectures: configuration from metadata, weight binding, layer forward
