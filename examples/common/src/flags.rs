//! The command line as all binaries read it, and what a budget is worth on this machine.
//!
//! Owns what clap does not do by itself; not the flags. Memory: none.

use clap::{Command, Parser};
use thalweg_runtime::available_memory_bytes;

use crate::note;

/// Reads the command line, or ends the process with what is wrong with it.
///
/// A negative number is a value here, not an unknown flag: whoever checks the range says what is
/// wrong.
pub fn parse<A: Parser>() -> A {
    let matches = with_negative_numbers(A::command()).get_matches();
    A::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut A::command()).exit())
}

/// A count, such as tokens or slots. For clap's own parser of the type a negative number has an
/// invalid digit.
///
/// # Errors
/// With the range.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| range(usize::MAX))
}

/// The same of 64 bits, for seeds, bytes and tokens of a trace.
///
/// # Errors
/// With the range.
pub fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| range(u64::MAX))
}

fn range(most: impl std::fmt::Display) -> String {
    format!("expected a whole number from 0 to {most}")
}

fn with_negative_numbers(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            // `-1GiB` is no number to clap.
            let names = arg.get_value_names().unwrap_or_default();
            let is_size = names.iter().any(|name| name.as_str() == "SIZE");
            arg.allow_negative_numbers(takes_values)
                .allow_hyphen_values(is_size)
        })
        .mut_subcommands(with_negative_numbers)
}

/// Says so if a budget that was asked for is more than this machine has left.
pub fn note_budget(budget_bytes: Option<u64>) {
    let available = available_memory_bytes();
    let words = budget_bytes.zip(available);
    if let Some(words) = words.and_then(|(budget, available)| excess(budget, available)) {
        note(&words);
    }
}

fn excess(budget_bytes: u64, available_bytes: u64) -> Option<String> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    (budget_bytes > available_bytes).then(|| {
        format!(
            "note: the budget of {:.2} GiB is more than the {:.2} GiB of memory that are available \
             now; a run that takes all of it will swap or be killed",
            gib(budget_bytes),
            gib(available_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Subcommand};

    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long)]
        temp: f32,
        #[arg(long, value_name = "SIZE")]
        budget: String,
        #[arg(long)]
        loud: bool,
        #[command(subcommand)]
        part: Part,
    }

    #[derive(Debug, Subcommand)]
    enum Part {
        One {
            #[arg(short)]
            k: i64,
        },
    }

    #[test]
    fn negative_numbers_are_values_of_flags_and_of_subcommands_flags() {
        let command = with_negative_numbers(Args::command());
        let line = [
            "x", "--temp", "-1.5", "--budget", "-1GiB", "--loud", "one", "-k", "-3",
        ];
        let matches = command.try_get_matches_from(line).expect("values");
        let args = Args::from_arg_matches(&matches).expect("complete");
        let Part::One { k } = args.part;
        assert!(args.temp < -1.0 && args.loud && k == -3);
        assert_eq!(args.budget, "-1GiB");
    }

    #[test]
    fn a_count_says_its_range() {
        assert_eq!(count("7"), Ok(7));
        for text in ["-1", "1.5", "", "99999999999999999999"] {
            assert!(
                count(text).is_err_and(|e| e.contains("from 0 to")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_budget_above_what_is_available_is_told_with_both_figures() {
        assert_eq!(excess(4 << 30, 4 << 30), None);
        let words = excess(64 << 30, 3 << 29).expect("too much");
        assert!(
            words.contains("64.00 GiB") && words.contains("1.50 GiB"),
            "{words}"
        );
    }
}
