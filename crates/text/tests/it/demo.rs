//! The vocabulary of the demo model that the repository carries.

use std::path::PathBuf;
use std::sync::LazyLock;

use thalweg_gguf::Gguf;
use thalweg_text::{Tokenizer, TokenizerSpec};

/// The demo model's tokenizer, built once.
pub(crate) static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::new(spec()).expect("the demo vocabulary is sound"));

/// The demo model's vocabulary as its file holds it.
pub(crate) fn spec() -> TokenizerSpec {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let gguf = Gguf::open(path).expect("models/demo.gguf opens");
    let metadata = gguf.metadata();
    let strings = |key: &str| metadata.str_array(key).expect("a list of strings").to_vec();
    TokenizerSpec {
        model: metadata
            .str("tokenizer.ggml.model")
            .expect("a string")
            .to_owned(),
        pre: metadata
            .str("tokenizer.ggml.pre")
            .expect("a string")
            .to_owned(),
        tokens: strings("tokenizer.ggml.tokens"),
        token_types: metadata
            .i32_array("tokenizer.ggml.token_type")
            .expect("numbers"),
        merges: strings("tokenizer.ggml.merges"),
        bos_id: metadata
            .opt_u32("tokenizer.ggml.bos_token_id")
            .expect("a number"),
        eos_id: metadata
            .opt_u32("tokenizer.ggml.eos_token_id")
            .expect("a number"),
        padding_id: metadata
            .opt_u32("tokenizer.ggml.padding_token_id")
            .expect("a number"),
        add_bos: metadata
            .opt_bool("tokenizer.ggml.add_bos_token")
            .expect("a flag")
            .unwrap_or(false),
        chat_template: metadata
            .opt_str("tokenizer.chat_template")
            .expect("a string")
            .map(str::to_owned),
        chat_templates: Vec::new(),
    }
}

/// A small vocabulary with all kinds of tokens: 256 bytes, then the rest.
pub(crate) fn small() -> TokenizerSpec {
    let mut spec = TokenizerSpec::bytes_only(["<|im_start|>", "<|im_end|>", "<|endoftext|>"]);
    for (token, kind) in [
        ("<think>", 4),
        ("</think>", 4),
        ("[PAD1]", 5),
        ("[PAD2]", 5),
        ("<unk>", 2),
        ("<0x0A>", 6),
        ("ab", 1),
        ("abc", 1),
        ("Ġa", 1),
    ] {
        spec.tokens.push(token.to_owned());
        spec.token_types.push(kind);
    }
    spec.merges = ["a b", "ab c", "Ġ a"].map(str::to_owned).to_vec();
    spec
}
