//! Tokenizer, streaming detokenizer and chat templates, built from GGUF metadata
