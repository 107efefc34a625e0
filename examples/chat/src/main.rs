//! A conversation on a terminal.

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use thalweg::{Event, Finish, GenerateOptions, Message, SamplerOptions, Text, generate};
use thalweg_examples_common::{ModelArgs, PrefillBar, StatsFormat, print_stats};

/// Talk with a model.
///
/// Ctrl-C stops a reply; at the prompt it ends the program, as Ctrl-D and /quit do.
/// /clear forgets the conversation.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Tokens of context: the whole conversation must fit
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    ctx: usize,

    /// Most tokens of a reply
    #[arg(
        short = 'n',
        long = "tokens",
        value_name = "TOKENS",
        default_value_t = 256
    )]
    max_tokens: usize,

    /// Temperature; 0 always takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,

    /// Keep the best tokens that together have probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,

    /// Seed of the sampler
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Instructions that open the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Print statistics on standard error after each reply
    #[arg(long, value_name = "FORMAT")]
    stats: Option<StatsFormat>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
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
    let mut history = opening.clone();
    let mut lines = std::io::stdin().lock().lines();
    let mut out = std::io::stdout();
    let is_terminal = std::io::stdin().is_terminal();
    loop {
        interrupt.idle();
        if is_terminal {
            write!(out, "> ").and_then(|()| out.flush())?;
        }
        let Some(line) = lines.next().transpose().context("cannot read the input")? else {
            break;
        };
        match line.trim() {
            "" => continue,
            "/quit" => break,
            "/clear" => {
                history.clone_from(&opening);
                continue;
            }
            said => history.push(Message::new("user", said)),
        }
        let before = engine.stats();
        let prompt = text.chat(&history)?;
        if prompt.len() >= args.ctx {
            eprintln!(
                "note: the conversation has {} tokens and the context {}; /clear it, or start with \
                 a larger --ctx",
                prompt.len(),
                args.ctx
            );
            history.pop();
            continue;
        }

        interrupt.busy();
        let bar = PrefillBar::new("reading");
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
        let tokenizer = text.tokenizer();
        let reply = generate(
            &mut engine,
            tokenizer,
            &mut session,
            &prompt,
            &options,
            &mut on_event,
        )?;
        match failed {
            Some(e) if e.kind() == ErrorKind::BrokenPipe => break,
            Some(e) => return Err(e.into()),
            None => writeln!(out)?,
        }
        match reply.finish {
            Finish::Stopped => eprintln!("(stopped)"),
            Finish::ContextFull => eprintln!("(the context is full; /clear forgets it)"),
            _ => {}
        }
        history.push(Message::new("assistant", reply.text));
        if let Some(format) = args.stats {
            print_stats(format, &engine.stats().since(&before), engine.plan())?;
        }
    }
    Ok(())
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
            std::process::exit(130);
        }
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(interrupt)
}
