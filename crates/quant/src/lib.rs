//! Block formats of ggml: layout, decode, quantize
