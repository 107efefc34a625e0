//! The loop from a prompt to a reply.

use std::ops::ControlFlow;

use thalweg_backend::Backend;
use thalweg_runtime::sample::{Sampler, SamplerOptions};
use thalweg_runtime::{Engine, LayerStats, Observer, Session, Stats};
use thalweg_text::{StopStrings, Tokenizer};

use crate::Result;

/// How to generate a reply.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Most tokens of the reply.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Texts that end the reply and are not part of it.
    pub stop: Vec<String>,
}

/// What happens while a reply is made.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// So many of the prompt's tokens have been taken in.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens that have to be taken in.
        total: usize,
    },
    /// More of the reply, never a part of a character.
    Text(&'a str),
    /// The prompt, or one more token, has been taken in; counters since the engine was opened.
    Step {
        /// Of the engine.
        stats: &'a Stats,
        /// Of each of its layers.
        layers: &'a [LayerStats],
    },
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended it.
    EndOfText,
    /// A stop text was met.
    StopText,
    /// It has as many tokens as were allowed.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller ended it.
    Stopped,
}

/// A finished reply.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its tokens, without the end marker.
    pub tokens: Vec<u32>,
    /// Its text, markers left out.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that the session had already.
    pub reused_tokens: usize,
}

/// Brings `session` to `prompt` and generates a reply to it.
///
/// `prompt` is the whole sequence, what the session holds already included: where the session's
/// tokens are a beginning of it only the rest is taken in, else the session starts over. (The
/// state of recurrent layers cannot be rewound.) At least the last token is always taken in anew
/// by a session that holds all of `prompt`, so that starts over too.
///
/// `on_event` sees progress and text and may end the reply.
///
/// # Errors
/// Any error of the engine, the tokenizer or the sampler; what was taken in stays in the session.
pub fn generate<B: Backend>(
    engine: &mut Engine<B>,
    tokenizer: &Tokenizer,
    session: &mut Session<B>,
    prompt: &[u32],
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Reply> {
    let mut sampler = Sampler::new(options.sampler)?;
    sampler.mask(&unused_ids(engine, tokenizer));
    let mut stop = StopStrings::new(options.stop.iter().map(String::as_str))?;
    let mut text = String::new();
    let mut tokens = Vec::new();

    let reused_tokens = match prompt.strip_prefix(session.tokens()) {
        Some(rest) if !rest.is_empty() => session.tokens().len(),
        _ => {
            engine.reset(session)?;
            0
        }
    };
    let prefill = engine.prefill(session, &prompt[reused_tokens..], &mut Progress(on_event));
    match prefill {
        Ok(()) => {}
        Err(thalweg_runtime::Error::Stopped { .. }) => {
            return Ok(Reply {
                tokens,
                text,
                finish: Finish::Stopped,
                reused_tokens,
            });
        }
        Err(e) => return Err(e.into()),
    }

    let mut detokenizer = tokenizer.detokenizer(true);
    let mut stepped = step(engine, on_event);
    let finish = loop {
        if stepped.is_break() {
            break Finish::Stopped;
        }
        if tokens.len() >= options.max_tokens {
            break Finish::MaxTokens;
        }
        let token = sampler.sample(session.logits(), session.tokens())?;
        if tokenizer.eos_ids().contains(&token) {
            break Finish::EndOfText;
        }
        tokens.push(token);
        let out = stop.push(detokenizer.push(token)?);
        text.push_str(&out.text);
        if !out.text.is_empty() && on_event(Event::Text(&out.text)).is_break() {
            break Finish::Stopped;
        }
        if out.stopped_by.is_some() {
            return Ok(Reply {
                tokens,
                text,
                finish: Finish::StopText,
                reused_tokens,
            });
        }
        // The last token's logits would serve nobody.
        if tokens.len() < options.max_tokens {
            if session.tokens().len() >= session.n_ctx() {
                break Finish::ContextFull;
            }
            engine.decode(session, token)?;
            stepped = step(engine, on_event);
        }
    };
    // What was held back in case more of a character or of a stop text would follow.
    let mut rest = stop.push(detokenizer.finish()).text;
    rest.push_str(&stop.finish());
    if !rest.is_empty() {
        text.push_str(&rest);
        // The reply is over whatever the caller says.
        let _ = on_event(Event::Text(&rest));
    }
    Ok(Reply {
        tokens,
        text,
        finish,
        reused_tokens,
    })
}

/// Tells what the last step did.
fn step<B: Backend>(
    engine: &Engine<B>,
    on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    on_event(Event::Step {
        stats: &engine.stats(),
        layers: &engine.layer_stats(),
    })
}

/// Ids that have an embedding but no text: padding of the vocabulary and unused entries.
fn unused_ids<B: Backend>(engine: &Engine<B>, tokenizer: &Tokenizer) -> Vec<u32> {
    let n_vocab = engine.spec().n_vocab;
    let ids = (0..n_vocab).filter_map(|id| u32::try_from(id).ok());
    ids.filter(|id| tokenizer.kind(*id).is_err() || tokenizer.is_unused(*id))
        .collect()
}

/// Passes a prefill's progress on.
struct Progress<'a>(&'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>);

impl Observer for Progress<'_> {
    fn on_progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        (self.0)(Event::Prefill { done, total })
    }
}
