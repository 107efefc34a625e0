//! Prompt in, text out.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use thalweg::{Backend, Event, Finish, GenerateOptions, Message, SamplerOptions, Text, generate};
use thalweg_examples_common::{
    CountBar, Device, DeviceArgs, Live, ModelArgs, PerToken, Settings, StatsFormat, count, note,
    parse, print_stats, report, whole,
};

/// Generate a reply to a prompt.
///
/// Dense weights stay in memory, routed experts are read from the model file as they are needed,
/// and everything together stays within --budget. The output is the same for every budget.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  generate \"What is the package libssl-dev?\"
  generate --budget 24MiB --stats text \"What is the package curl?\"
  generate --raw -n 16 \"The quick brown\"
  generate --budget 24MiB --readahead 2 --live \"What is the package curl?\""
)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Most tokens of the reply
    #[arg(
        short = 'n',
        long = "tokens",
        value_name = "TOKENS",
        default_value_t = 128,
        value_parser = count
    )]
    max_tokens: usize,

    /// Tokens of context [default: what the prompt and the reply need]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    ctx: Option<usize>,

    /// Temperature; 0 always takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,

    /// Keep only the K best tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = count)]
    top_k: usize,

    /// Keep the best tokens that together have probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,

    /// Keep tokens with at least P times the best one's probability
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,

    /// Penalty on tokens that occurred before; 1 is none
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    repeat_penalty: f32,

    /// Seed of the sampler
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole)]
    seed: u64,

    /// Take the prompt as it is: no chat template, markers such as <|im_start|> parsed
    #[arg(long)]
    raw: bool,

    /// Watch the run: hit rate, speed and a strip of layers on one screen, redrawn on standard
    /// error; the reply goes to standard output when it is complete
    #[arg(long)]
    live: bool,

    /// Print what was done and with which settings, on standard error
    #[arg(long, value_name = "FORMAT")]
    stats: Option<StatsFormat>,

    /// The prompt
    prompt: String,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    match args.device.open(&args.model)? {
        Device::Cpu(backend) => run_on(args, backend),
        Device::Gpu(backend) => run_on(args, backend),
    }
}

fn run_on<B: Backend>(args: &Args, backend: B) -> Result<()> {
    let file = args.model.file()?;
    let text = Text::from_file(&file)?;
    let prompt = match args.raw || !text.has_template() {
        true => text.raw(&args.prompt),
        false => text.chat(&[Message::new("user", args.prompt.as_str())])?,
    };
    let needed = prompt.len().saturating_add(args.max_tokens.max(1));
    let n_ctx = args.ctx.unwrap_or(needed);
    let mut engine = args.model.engine_on(backend, file, n_ctx)?;
    let mut session = engine.session()?;

    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampler: SamplerOptions {
            temperature: args.temp,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repeat_penalty,
            seed: args.seed,
            ..SamplerOptions::default()
        },
        stop: Vec::new(),
    };
    let bar = CountBar::tokens("reading the prompt");
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let mut live = args.live.then(|| Live::new(args.max_tokens));
    let mut per_token = PerToken::default();
    let mut on_event = |event: Event<'_>| {
        match event {
            Event::Prefill { done, total } => bar.update(done, total),
            Event::Step { stats, layers } => {
                per_token.push(stats);
                if let Some(live) = &mut live {
                    live.step(stats, layers);
                }
            }
            Event::Text(piece) => {
                if let Some(live) = &mut live {
                    live.text(piece);
                } else if let Err(e) = out.write_all(piece.as_bytes()).and_then(|()| out.flush()) {
                    failed = Some(e);
                    return ControlFlow::Break(());
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
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
    if let Some(live) = &mut live {
        live.finish();
        write!(out, "{}", reply.text)?;
    }
    match failed {
        Some(e) => return Err(e.into()),
        None => writeln!(out)?,
    }
    if reply.finish == Finish::ContextFull {
        note(&format!(
            "note: the context of {n_ctx} tokens is full; raise --ctx for a longer reply"
        ));
    }
    match args.stats {
        Some(format) => {
            let settings = Settings::of(&args.model, &engine).with_sampler(&options.sampler);
            let (stats, plan) = (engine.stats(), engine.plan());
            print_stats(format, &settings, &stats, plan, Some(&per_token))
        }
        None => Ok(()),
    }
}
