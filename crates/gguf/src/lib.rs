//! GGUF files: metadata, tensor directory, splits, writer
