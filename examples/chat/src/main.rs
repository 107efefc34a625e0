//! A conversation on a terminal.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use thalweg::{
    Engine, Event, Finish, GenerateOptions, Message, Reply, SamplerOptions, Session, Text, generate,
};
use thalweg_examples_common::{
    CountBar, ModelArgs, Settings, StatsFormat, count, note, parse, print_stats, report, whole,
};

/// Talk with a model.
///
/// Ctrl-C stops a reply; at the prompt it ends the program, as Ctrl-D and /quit do.
/// /clear forgets the conversation.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Tokens of context: the whole conversation must fit
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = count)]
    ctx: usize,

    /// Most tokens of a reply
    #[arg(
        short = 'n',
        long = "tokens",
        value_name = "TOKENS",
        default_value_t = 256,
        value_parser = count
    )]
    max_tokens: usize,

    /// Temperature; 0 always takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,

    /// Keep the best tokens that together have probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,

    /// Seed of the sampler
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole)]
    seed: u64,

    /// Instructions that open the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Print statistics on standard error after each reply
    #[arg(long, value_name = "FORMAT")]
    stats: Option<StatsFormat>,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let file = args.model.file()?;
    let text = Text::from_file(&file)?;
    let mut engine = args.model.engine(file, args.ctx)?;
    let mut session = engine.session()?;
    let interrupt = interrupt_flag()?;
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampler: SamplerOptions {
            temperature: args.temp,
            top_p: args.top_p,
            seed: args.seed,
            ..SamplerOptions::default()
        },
        stop: Vec::new(),
    };

    let opening: Vec<_> = args
        .system
        .iter()
        .map(|s| Message::new("system", s.as_str()))
        .collect();
    let mut talk = Talk {
        history: opening.clone(),
        ..Talk::default()
    };
    let mut input = std::io::stdin().lock();
    let is_terminal = std::io::stdin().is_terminal();
    loop {
        interrupt.idle();
        if is_terminal {
            let mut out = std::io::stdout();
            write!(out, "> ").and_then(|()| out.flush())?;
        }
        let Some(line) = read_line(&mut input, args.ctx)? else {
            break;
        };
        match line.trim() {
            "" => continue,
            "/quit" => break,
            "/clear" => {
                talk = Talk {
                    history: opening.clone(),
                    ..Talk::default()
                };
                continue;
            }
            said if said.starts_with('/') => {
                note(
                    "commands are /clear and /quit; begin with a space to say a line with a slash",
                );
                continue;
            }
            _ => talk.history.push(Message::new("user", line.trim())),
        }
        let prompt = text.chat_on(&talk.history, &talk.prompt, &talk.reply)?;
        if prompt.len() >= args.ctx {
            let (n, ctx) = (prompt.len(), args.ctx);
            note(&format!(
                "the conversation has {n} tokens and the context {ctx}; /clear it, or start with a \
                 larger --ctx"
            ));
            talk.history.pop();
            continue;
        }

        let before = engine.stats();
        interrupt.busy();
        let reply = answer(
            &mut engine,
            &mut session,
            &text,
            &prompt,
            &options,
            &interrupt,
        );
        let reply = match reply {
            Ok(reply) => reply,
            Err(e) if e.is::<std::io::Error>() => return Err(e),
            Err(e) => {
                // The session is as it was before the step that failed.
                note(&format!("error: {e:#}"));
                talk.history.pop();
                continue;
            }
        };
        match reply.finish {
            Finish::Stopped => note("(stopped)"),
            Finish::ContextFull => note("(the context is full; /clear forgets it)"),
            _ => {}
        }
        if reply.finish == Finish::Stopped && reply.tokens.is_empty() {
            // Nothing was said to it: the next line starts from the turn before.
            talk.history.pop();
        } else {
            talk.history.push(Message::new("assistant", reply.text));
            (talk.prompt, talk.reply) = (prompt, reply.tokens);
        }
        if let Some(format) = args.stats {
            let settings = Settings::of(&args.model, &engine).with_sampler(&options.sampler);
            print_stats(
                format,
                &settings,
                &engine.stats().since(&before),
                engine.plan(),
                None,
            )?;
        }
    }
    Ok(())
}

/// The conversation so far.
#[derive(Debug, Default)]
struct Talk {
    history: Vec<Message>,
    /// Tokens of the last turn that was answered, and of the answer.
    prompt: Vec<u32>,
    reply: Vec<u32>,
}

/// Generates a reply and prints it as it comes. Errors of standard output stay `io::Error`s.
fn answer(
    engine: &mut Engine,
    session: &mut Session,
    text: &Text,
    prompt: &[u32],
    options: &GenerateOptions,
    interrupt: &Interrupt,
) -> Result<Reply> {
    let bar = CountBar::tokens("reading");
    let mut out = std::io::stdout();
    let mut failed = None;
    let mut on_event = |event: Event<'_>| {
        match event {
            Event::Prefill { done, total } => bar.update(done, total),
            Event::Text(piece) => {
                failed = out
                    .write_all(piece.as_bytes())
                    .and_then(|()| out.flush())
                    .err();
            }
            _ => {}
        }
        match failed.is_some() || interrupt.requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let reply = generate(
        engine,
        text.tokenizer(),
        session,
        prompt,
        options,
        &mut on_event,
    )?;
    match failed {
        Some(e) => return Err(e.into()),
        None => writeln!(out)?,
    }
    Ok(reply)
}

/// A line of input; `None` at its end. Bytes that are not UTF-8 read as U+FFFD.
///
/// What cannot fit `n_ctx` tokens is skipped: tokenizing it would take memory that nothing counts.
fn read_line(input: &mut impl BufRead, n_ctx: usize) -> Result<Option<String>> {
    let limit = n_ctx.saturating_mul(LINE_BYTES_PER_TOKEN);
    let mut line = Vec::new();
    let n = input.take(limit as u64 + 1).read_until(b'\n', &mut line);
    if n.context("cannot read the input")? == 0 {
        return Ok(None);
    }
    if line.len() > limit && !line.ends_with(b"\n") {
        skip_line(input).context("cannot read the input")?;
        note(&format!(
            "a line of more than {limit} bytes was skipped; the context is {n_ctx} tokens"
        ));
        return Ok(Some(String::new()));
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

/// Bytes of a line that may stand for a token of context.
const LINE_BYTES_PER_TOKEN: usize = 32;

/// Reads to the end of the line and forgets it.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let end = buffer.iter().position(|b| *b == b'\n');
        let (n, is_end) = (
            end.map_or(buffer.len(), |at| at + 1),
            end.is_some() || buffer.is_empty(),
        );
        input.consume(n);
        if is_end {
            return Ok(());
        }
    }
}

/// What Ctrl-C does: ends the program at the prompt, a reply while one is made.
#[derive(Debug, Clone, Default)]
struct Interrupt {
    busy: Arc<AtomicBool>,
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    fn idle(&self) {
        self.busy.store(false, Ordering::SeqCst);
    }

    fn busy(&self) {
        self.requested.store(false, Ordering::SeqCst);
        self.busy.store(true, Ordering::SeqCst);
    }

    fn requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}

fn interrupt_flag() -> Result<Interrupt> {
    let interrupt = Interrupt::default();
    let handler = interrupt.clone();
    ctrlc::set_handler(move || {
        if !handler.busy.load(Ordering::SeqCst) || handler.requested.swap(true, Ordering::SeqCst) {
            // At the prompt, or asked twice: 130 is what shells report for an interrupt.
            note("");
            std::process::exit(130);
        }
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(interrupt)
}
