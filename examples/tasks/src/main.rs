//! Asks a model tasks and judges the answers. Owns: flags, the loop, what is printed. Does not own:
//! rules and scores (`thalweg-eval`), generation (`thalweg`).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args as ClapArgs, Parser, Subcommand};
use serde_json::json;
use thalweg::{Finish, GenerateOptions, Message, RenderOptions, SamplerOptions, Text, generate};
use thalweg_eval::tasks::{Scores, Task, TaskOutput};
use thalweg_examples_common::{
    CountBar, ModelArgs, check_outputs, count, parse, print_line, read_text, report, whole,
    write_whole,
};

/// Ask a model tasks, store its answers, and judge them by rules.
///
/// Answers and rules are separate: stored answers can be judged again by other rules, without the
/// model. A handful of tasks shows that something is broken, not which of two models is better;
/// `compare` says how little a difference means.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  tasks run --model m.gguf --tasks tasks.jsonl --out m.jsonl
  tasks score --tasks tasks.jsonl --outputs m.jsonl
  tasks score --tasks other-rules.jsonl --outputs m.jsonl --json
  tasks compare --tasks tasks.jsonl --outputs m.jsonl --with small.jsonl"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<RunArgs>),
    Score(ScoreArgs),
    Compare(CompareArgs),
}

/// Ask every task and store the answers.
///
/// Answers are deterministic: the best token each time unless --temp is given, and then a draw that
/// --seed decides. Each task is a conversation of its own. OUT appears when all are answered.
#[derive(Debug, ClapArgs)]
struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Tasks, one JSON object a line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,

    /// Where the answers go, one JSON object a line
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Tokens of context [default: what the longest task needs]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    ctx: Option<usize>,

    /// Temperature; 0 always takes the best token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,

    /// Seed of the sampler
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole)]
    seed: u64,
}

/// Judge stored answers.
///
/// The exit code is 1 when a task fails. A file of rules may leave out messages and tasks; answers
/// that no task judges are listed.
#[derive(Debug, ClapArgs)]
struct ScoreArgs {
    /// Tasks with their rules, one JSON object a line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,

    /// Stored answers
    #[arg(long, value_name = "FILE")]
    outputs: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Judge the stored answers of two models and say what the difference means.
#[derive(Debug, ClapArgs)]
struct CompareArgs {
    /// Tasks with their rules, one JSON object a line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,

    /// Stored answers of the first model
    #[arg(long, value_name = "FILE")]
    outputs: PathBuf,

    /// Stored answers of the second model
    #[arg(long, value_name = "FILE")]
    with: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    report(match parse::<Args>().command {
        Command::Run(args) => run(&args).map(|()| true),
        Command::Score(args) => score(&args),
        Command::Compare(args) => compare(&args).map(|()| true),
    })
}

fn tasks(path: &Path) -> Result<Vec<Task>> {
    let tasks = Task::read_all(&read_text(path)?);
    tasks.with_context(|| format!("cannot use the tasks {}", path.display()))
}

fn outputs(path: &Path) -> Result<Vec<TaskOutput>> {
    let outputs = TaskOutput::read_all(&read_text(path)?);
    outputs.with_context(|| format!("cannot use the answers {}", path.display()))
}

fn scores(path: &Path, tasks: &[Task]) -> Result<Scores> {
    let scores = Scores::of(tasks, &outputs(path)?);
    scores.with_context(|| format!("cannot judge {}", path.display()))
}

fn run(args: &RunArgs) -> Result<()> {
    let tasks = tasks(&args.tasks)?;
    let file = args.model.file()?;
    let shards = (0..file.n_shards()).filter_map(|shard| Some(("--model", file.path(shard)?)));
    let inputs: Vec<_> = shards.chain([("--tasks", args.tasks.as_path())]).collect();
    check_outputs(&[("--out", &args.out)], &inputs)?;
    let text = Text::from_file(&file)?;
    let prompts = tasks.iter().map(|task| {
        prompt(&text, task).with_context(|| format!("task {:?} cannot be asked", task.id))
    });
    let prompts: Vec<Vec<u32>> = prompts.collect::<Result<_>>()?;
    let needed = tasks.iter().zip(&prompts);
    let needed = needed.map(|(task, prompt)| prompt.len().saturating_add(task.max_tokens.max(1)));
    let n_ctx = args.ctx.or_else(|| needed.max()).unwrap_or(1);
    let mut engine = args.model.engine(file, n_ctx)?;
    let mut session = engine.session()?;

    let bar = CountBar::new("asking", "tasks");
    let mut lines = String::new();
    let mut n_truncated = 0;
    for (i, (task, prompt)) in tasks.iter().zip(&prompts).enumerate() {
        bar.update(i, tasks.len());
        engine.reset(&mut session)?;
        let options = GenerateOptions {
            max_tokens: task.max_tokens,
            sampler: SamplerOptions {
                temperature: args.temp,
                seed: args.seed,
                ..SamplerOptions::default()
            },
            stop: Vec::new(),
        };
        let reply = generate(
            &mut engine,
            text.tokenizer(),
            &mut session,
            prompt,
            &options,
            &mut |_| ControlFlow::Continue(()),
        );
        let reply = reply.with_context(|| format!("task {:?}", task.id))?;
        let truncated = !matches!(reply.finish, Finish::EndOfText | Finish::StopText);
        n_truncated += usize::from(truncated);
        let output = TaskOutput {
            id: task.id.clone(),
            prompt_sha256: task.prompt_sha256(),
            text: reply.text,
            n_tokens: reply.tokens.len(),
            truncated,
        };
        lines += &serde_json::to_string(&output)?;
        lines.push('\n');
    }
    bar.finish();
    write_whole(&args.out, &lines)?;
    print_line(&format!(
        "{}: {} answers, {n_truncated} of them cut off",
        args.out.display(),
        tasks.len()
    ))
}

/// Tokens of a task's conversation, ready for the answer.
fn prompt(text: &Text, task: &Task) -> Result<Vec<u32>> {
    anyhow::ensure!(!task.messages.is_empty(), "it has no messages");
    let messages = task.messages.iter().cloned().map(serde_json::from_value);
    let messages: Vec<Message> = messages.collect::<Result<_, _>>().context("messages")?;
    let options = RenderOptions {
        add_generation_prompt: true,
        tools: task.tools.clone(),
        ..RenderOptions::default()
    };
    Ok(text.chat_with(&messages, &options)?)
}

fn score(args: &ScoreArgs) -> Result<bool> {
    let found = scores(&args.outputs, &tasks(&args.tasks)?)?;
    let passed = found.n_passed == found.n_tasks;
    if args.json {
        print_line(&serde_json::to_string(&found)?)?;
        return Ok(passed);
    }
    let widest = found.tasks.iter().map(|t| t.id.chars().count()).max();
    let width = widest.unwrap_or(0);
    for task in &found.tasks {
        let verdict = match &task.cause {
            None => "passed".to_owned(),
            Some(cause) => format!("{cause} ({})", task.failed.join(", ")),
        };
        print_line(&format!("{:<width$}  {verdict}", task.id))?;
    }
    let causes = found.causes.iter();
    let causes: Vec<String> = causes.map(|(cause, n)| format!("{n} {cause}")).collect();
    print_line(&format!(
        "{} of {} passed{}{}",
        found.n_passed,
        found.n_tasks,
        if causes.is_empty() {
            ""
        } else {
            "; failures: "
        },
        causes.join(", ")
    ))?;
    if !found.unjudged.is_empty() {
        print_line(&format!("not judged: {}", found.unjudged.join(", ")))?;
    }
    Ok(passed)
}

fn compare(args: &CompareArgs) -> Result<()> {
    let tasks = tasks(&args.tasks)?;
    let first = scores(&args.outputs, &tasks)?;
    let second = scores(&args.with, &tasks)?;
    let found = first.compare(&second)?;
    if args.json {
        let value = json!({
            "first": args.outputs.to_string_lossy(),
            "second": args.with.to_string_lossy(),
            "comparison": found,
        });
        return print_line(&value.to_string());
    }
    let [a, b] = found.n_passed;
    let n = found.n_tasks;
    print_line(&format!("{}: {a} of {n} passed", args.outputs.display()))?;
    print_line(&format!("{}: {b} of {n} passed", args.with.display()))?;
    for (which, ids) in [("first", &found.only_first), ("second", &found.only_second)] {
        if !ids.is_empty() {
            print_line(&format!("only the {which}: {}", ids.join(", ")))?;
        }
    }
    print_line(&format!(
        "Fisher's exact test: p = {:.3} two-sided{}",
        found.fisher.p_two_sided,
        match found.fisher.p_two_sided < 0.05 {
            true => "",
            false => "; that ranks nothing",
        }
    ))
}
