//! Texts as windows of tokens.
//!
//! Owns reading and naming; encoding is `thalweg`'s, cutting `WindowSet`'s. Memory: one text and the
//! tokens of all windows.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use thalweg::{SpecialTokens, Text};
use thalweg_eval::overlap::{OverlapAudit, OverlapReport};
use thalweg_eval::report::TextFacts;
use thalweg_eval::{Cut, WindowSet};
use thalweg_examples_common::read_text;

/// What is read where nothing is named: domain and text.
const OWN: [(&str, &str); 2] = [
    ("en", include_str!("../texts/en.txt")),
    ("code", include_str!("../texts/code.txt")),
];

/// What markers in a text are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Markers {
    /// Tokens of their own, as in a conversation: only for trusted texts.
    Parse,
    /// Letters like any others.
    Text,
}

/// Where tokens come from.
pub(crate) struct Source<'a> {
    text: &'a Text,
    special: SpecialTokens,
}

impl<'a> Source<'a> {
    pub(crate) fn new(text: &'a Text, markers: Markers) -> Self {
        let special = match markers {
            Markers::Parse => SpecialTokens::Parse,
            Markers::Text => SpecialTokens::AsText,
        };
        Self { text, special }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.text.tokenizer().encode(text, self.special)
    }

    /// Cuts the texts into windows of `set`.
    pub(crate) fn windows(
        &self,
        paths: &[PathBuf],
        cut: Cut,
        set: &mut WindowSet,
    ) -> Result<Vec<TextFacts>> {
        let mut facts = Vec::new();
        let mut add = |file: &str, domain: &str, text: &str| -> Result<()> {
            let tokens = self.encode(text);
            set.add(domain, &tokens, cut)
                .with_context(|| format!("cannot use the text {file}"))?;
            facts.push(TextFacts {
                file: file.to_owned(),
                domain: domain.to_owned(),
                n_tokens: tokens.len(),
            });
            Ok(())
        };
        for (domain, text) in OWN.iter().filter(|_| paths.is_empty()) {
            add(&format!("(own {domain}.txt)"), domain, text)?;
        }
        for path in paths {
            add(&path.to_string_lossy(), &domain(path), &read_text(path)?)?;
        }
        Ok(facts)
    }

    /// Adds the windows that files state with their spans.
    pub(crate) fn spans(&self, paths: &[PathBuf], set: &mut WindowSet) -> Result<Vec<TextFacts>> {
        let n_bos = usize::from(self.text.tokenizer().adds_bos());
        let mut facts = Vec::new();
        for path in paths {
            let n_before = set.n_tokens();
            let encode = |text: &str, is_start: bool| {
                let tokens = self.encode(text);
                match is_start {
                    true => tokens,
                    // Only a window begins with the vocabulary's first token.
                    false => tokens.into_iter().skip(n_bos).collect(),
                }
            };
            set.add_lines(&read_text(path)?, encode)
                .with_context(|| format!("cannot use {}", path.display()))?;
            facts.push(TextFacts {
                file: path.to_string_lossy().into_owned(),
                domain: "(by line)".to_owned(),
                n_tokens: set.n_tokens() - n_before,
            });
        }
        anyhow::ensure!(!set.windows().is_empty(), "--spans states no window");
        Ok(facts)
    }

    /// Looks for n-grams of the windows in other texts.
    pub(crate) fn overlap(
        &self,
        paths: &[PathBuf],
        set: &WindowSet,
        n: usize,
    ) -> Result<OverlapReport> {
        let mut audit = OverlapAudit::new(set, n).context("--ngram")?;
        for path in paths {
            audit.scan(&path.to_string_lossy(), &self.encode(&read_text(path)?));
        }
        Ok(audit.finish())
    }

    /// What the encoding should be known for.
    pub(crate) fn notes(&self) -> Option<String> {
        self.text.tokenizer().adds_bos().then(|| {
            "the vocabulary asks for a first token before every text: only the first window of each \
             text has it"
                .to_owned()
        })
    }
}

/// A file's name up to its first dot.
pub(crate) fn domain(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}
