//! The live view: what a run does, on one screen that is drawn again and again.
//!
//! Owns the few lines and their drawing on standard error; not the figures. Where standard error is
//! no terminal, only the last state is drawn, once. Memory: the last counters and the reply's tail.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use thalweg::{LayerStats, Stats};

use crate::or_na;

/// Tokens that the figures are of.
const WINDOW: usize = 32;
/// Lines of the reply that are shown.
const TEXT_LINES: usize = 6;
const REDRAW_EVERY: Duration = Duration::from_millis(100);
/// From no hit to nothing but hits.
const HEAT: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A view of one reply.
#[derive(Debug)]
pub struct Live {
    width: usize,
    is_terminal: bool,
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
        let columns = std::env::var("COLUMNS").ok();
        let columns = columns.and_then(|c| c.parse().ok());
        Self {
            width: columns.unwrap_or(80).clamp(40, 200),
            is_terminal: std::io::stderr().is_terminal(),
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
        if self.is_terminal && is_due {
            self.draw();
        }
    }

    /// Draws the last state, which stays.
    pub fn finish(&mut self) {
        self.draw();
    }

    fn draw(&mut self) {
        let lines = self.frame();
        let mut screen = String::new();
        if self.is_terminal && self.n_lines > 0 {
            screen.push_str(&format!("\x1b[{}A", self.n_lines));
        }
        for line in &lines {
            screen.push_str(line);
            screen.push_str(if self.is_terminal { "\x1b[K\n" } else { "\n" });
        }
        self.n_lines = lines.len();
        self.drawn = Some(Instant::now());
        // Where standard error is closed or full, nobody looks.
        let _ = std::io::stderr().write_all(screen.as_bytes());
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
        lines.resize(3, String::new());
        let mut tail = wrapped(&self.text, self.width);
        tail.drain(..tail.len().saturating_sub(TEXT_LINES));
        tail.resize(TEXT_LINES, String::new());
        lines.extend(tail);
        let cut = |line: String| line.chars().take(self.width).collect();
        lines.into_iter().map(cut).collect()
    }
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
            is_terminal: false,
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
