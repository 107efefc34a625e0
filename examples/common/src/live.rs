//! The live view: what a run does, on one screen that is drawn again and again.
//!
//! Owns the few lines and their drawing on standard error; not the figures. Where standard error is
//! no terminal, or one that cannot go back (`TERM=dumb`), only the last state is drawn, once.
//! Memory: the last counters and the reply's tail.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use console::Term;
use thalweg::{LayerStats, Stats};

use crate::or_na;

/// Tokens that the figures are of.
const WINDOW: usize = 32;
/// Lines of figures, above the reply.
const FIGURE_LINES: usize = 3;
/// Lines of the reply that are shown.
const TEXT_LINES: usize = 6;
const REDRAW_EVERY: Duration = Duration::from_millis(100);
/// From no hit to nothing but hits.
const HEAT: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A view of one reply.
#[derive(Debug)]
pub struct Live {
    width: usize,
    /// Whether lines can be drawn again in place.
    redraws: bool,
    drawn: Option<Instant>,
    n_lines: usize,
    /// Counters of the last tokens, oldest first.
    history: VecDeque<(Stats, Vec<LayerStats>)>,
    n_tokens: usize,
    max_tokens: usize,
    text: String,
}

impl Live {
    /// A view of a reply of up to `max_tokens` tokens.
    pub fn new(max_tokens: usize) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            width: current_width(),
            redraws: std::io::stderr().is_terminal() && !is_dumb,
            drawn: None,
            n_lines: 0,
            history: VecDeque::new(),
            n_tokens: 0,
            max_tokens,
            text: String::new(),
        }
    }

    /// More of the reply.
    pub fn text(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// The prompt or one more token was taken in.
    pub fn step(&mut self, stats: &Stats, layers: &[LayerStats]) {
        self.n_tokens += usize::from(!self.history.is_empty());
        if self.history.len() > WINDOW {
            self.history.pop_front();
        }
        self.history.push_back((*stats, layers.to_vec()));
        let is_due = self.drawn.is_none_or(|at| at.elapsed() >= REDRAW_EVERY);
        if self.redraws && is_due {
            self.width = current_width();
            self.draw(true);
        }
    }

    /// Draws the last state, which stays. The reply is left out where it is about to be written to
    /// the same screen: both standard output and standard error are terminals.
    pub fn finish(&mut self) {
        let on_one_screen = std::io::stderr().is_terminal() && std::io::stdout().is_terminal();
        self.draw(!on_one_screen);
    }

    fn draw(&mut self, with_reply: bool) {
        let screen = self.screen(with_reply);
        self.drawn = Some(Instant::now());
        // Where standard error is closed or full, nobody looks.
        let _ = std::io::stderr().write_all(screen.as_bytes());
    }

    /// What draws the lines over those that were drawn last.
    fn screen(&mut self, with_reply: bool) -> String {
        let mut lines = self.frame();
        if !with_reply {
            lines.truncate(FIGURE_LINES);
        }
        let mut screen = String::new();
        if self.redraws && self.n_lines > 0 {
            screen.push_str(&format!("\x1b[{}A", self.n_lines));
        }
        for line in &lines {
            screen.push_str(line);
            screen.push_str(if self.redraws { "\x1b[K\n" } else { "\n" });
        }
        if self.redraws {
            // Lines of a longer view.
            screen.push_str("\x1b[J");
        }
        self.n_lines = lines.len();
        screen
    }

    /// The lines of the view, each at most `width` characters.
    fn frame(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some((first, first_layers)), Some((last, last_layers))) =
            (self.history.front(), self.history.back())
        {
            let stats = last.since(first);
            let n = (self.history.len() - 1).max(1) as f64;
            let percent = |share: Option<f64>| or_na(share, |s| format!("{:.1} %", 100.0 * s));
            let rate = or_na(stats.decode_tokens_per_s(), |r| format!("{r:.1} tok/s"));
            let read = stats.expert_bytes as f64 / n / 1e6;
            let reached = or_na(stats.io_gb_per_s(), |r| format!("{r:.2} GB/s"));
            lines.push(format!(
                "token {} of {}  {rate}  waiting {:.1} ms a token",
                self.n_tokens,
                self.max_tokens,
                stats.wait.as_secs_f64() * 1e3 / n,
            ));
            lines.push(format!(
                "hits {} ({} with read-ahead)  {read:.1} MB a token at {reached}",
                percent(stats.hit_rate()),
                percent(stats.combined_hit_rate()),
            ));
            lines.push(format!("layers {}", heat(first_layers, last_layers)));
        }
        lines.resize(FIGURE_LINES, String::new());
        let mut tail = wrapped(&self.text, self.width);
        tail.drain(..tail.len().saturating_sub(TEXT_LINES));
        tail.resize(TEXT_LINES, String::new());
        lines.extend(tail);
        let cut = |line: String| line.chars().take(self.width).collect();
        lines.into_iter().map(cut).collect()
    }
}

/// Columns that a line may fill now.
fn current_width() -> usize {
    let terminal = Term::stderr().size_checked();
    let told = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    usable_width(terminal.map(|(_, columns)| columns.into()), told)
}

/// What the terminal says counts; without one, what the environment says.
fn usable_width(terminal: Option<usize>, told: Option<usize>) -> usize {
    // A terminal may start a new line behind its last column, or wipe what stands there.
    let width = terminal.map(|columns| columns.saturating_sub(1)).or(told);
    width.unwrap_or(80).clamp(1, 200)
}

/// One character a layer: its hit rate between two counts; a dot for one that was asked nothing.
fn heat(before: &[LayerStats], after: &[LayerStats]) -> String {
    let pairs = before.iter().zip(after);
    pairs
        .map(|(before, after)| {
            let hits = after.hits - before.hits;
            let absent = after.guessed_hits - before.guessed_hits + after.misses - before.misses;
            match hits + absent {
                0 => '·',
                n => {
                    let step = hits * HEAT.len() as u64 / n;
                    HEAT[(step as usize).min(HEAT.len() - 1)]
                }
            }
        })
        .collect()
}

/// Text in lines of at most `width` characters; control characters are left out.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let clean: Vec<char> = line.chars().filter(|c| !c.is_control()).collect();
        match clean.is_empty() {
            true => lines.push(String::new()),
            false => lines.extend(clean.chunks(width).map(|c| c.iter().collect::<String>())),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(hits: u64, misses: u64) -> LayerStats {
        let mut stats = LayerStats::default();
        (stats.hits, stats.misses) = (hits, misses);
        stats
    }

    fn view() -> Live {
        Live {
            width: 60,
            redraws: false,
            ..Live::new(9)
        }
    }

    #[test]
    fn heat_rises_with_the_hit_rate_of_the_interval() {
        let before = [layer(100, 0), layer(0, 5), layer(7, 7), layer(1, 1)];
        let after = [layer(100, 10), layer(8, 5), layer(11, 11), layer(1, 1)];
        assert_eq!(heat(&before, &after), "▁█▅·");
    }

    #[test]
    fn the_terminal_s_own_width_counts_before_the_environment_s() {
        assert_eq!(usable_width(Some(30), Some(120)), 29);
        assert_eq!(usable_width(None, Some(120)), 120);
        assert_eq!(usable_width(None, None), 80);
        assert_eq!(usable_width(Some(0), None), 1);
    }

    #[test]
    fn the_last_view_leaves_out_a_reply_that_follows_and_wipes_what_stood_there() {
        let mut live = view();
        live.text("the reply");
        live.step(&Stats::default(), &[layer(0, 1)]);
        let plain = live.screen(true);
        assert!(plain.contains("the reply") && !plain.contains('\x1b'));
        live.redraws = true;
        assert!(live.screen(true).contains("the reply"));
        let last = live.screen(false);
        let n_lines = FIGURE_LINES + TEXT_LINES;
        assert!(last.starts_with(&format!("\x1b[{n_lines}A")), "{last:?}");
        assert!(last.ends_with("\x1b[J") && !last.contains("the reply"));
        assert_eq!(last.lines().count(), FIGURE_LINES + 1);
    }

    #[test]
    fn a_frame_has_the_same_lines_from_first_to_last_and_fits_the_width() {
        let mut live = view();
        let empty = live.frame().len();
        let mut stats = Stats::default();
        for i in 1..100_u64 {
            stats.hits += 3;
            stats.misses += 1;
            stats.decode_tokens += 1;
            stats.decode_time += Duration::from_millis(10);
            live.text("a reply that goes on and on\n and \x1b[31m on");
            live.step(&stats, &[layer(3 * i, i)]);
        }
        let frame = live.frame();
        assert_eq!(frame.len(), empty);
        assert!(frame.iter().all(|l| l.chars().count() <= 60), "{frame:?}");
        assert!(!frame.concat().contains('\x1b'));
        assert!(
            frame[0].starts_with("token 98 of 9  100.0 tok/s"),
            "{}",
            frame[0]
        );
        assert!(frame[1].starts_with("hits 75.0 %"), "{}", frame[1]);
        assert_eq!(frame[2], "layers ▇");
    }
}
