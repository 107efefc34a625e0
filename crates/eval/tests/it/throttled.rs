//! Time of a token from a store whose reads are throttled, against the models.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use thalweg_eval::latency::fit::{DecodeRow, Rounded, fit};
use thalweg_eval::latency::{BandwidthCurve, DecodeLoad, DecodeModel, DecodeParts, TableModel};

const EXPERT_BYTES: usize = 150_000;
const GB_PER_S: f64 = 0.1;
const FLOOR: Duration = Duration::from_millis(6);
const LATENCY: Duration = Duration::from_micros(500);

/// Expert bytes in a file, handed out no faster than a drive of this bandwidth and latency would.
struct ThrottledStore {
    file: File,
    latency: Duration,
    buffer: Vec<u8>,
}

impl ThrottledStore {
    fn new(latency: Duration) -> Self {
        let mut file = tempfile::tempfile().expect("temporary file");
        for expert in 0..8_u8 {
            file.write_all(&vec![expert; EXPERT_BYTES])
                .expect("room on the disk");
        }
        Self {
            file,
            latency,
            buffer: vec![0; EXPERT_BYTES],
        }
    }

    /// Reads experts one after the other, done at the time that the drive would be.
    fn read(&mut self, n: u64) {
        let start = Instant::now();
        let one = self.latency + Duration::from_secs_f64(EXPERT_BYTES as f64 / GB_PER_S / 1e9);
        for i in 1..=n {
            let expert = (i % 8) as u8;
            let at = SeekFrom::Start(u64::from(expert) * EXPERT_BYTES as u64);
            self.file.seek(at).expect("within the file");
            self.file.read_exact(&mut self.buffer).expect("whole");
            assert!(self.buffer.iter().all(|&byte| byte == expert));
            // Against the start, so that late wake-ups do not add up.
            let due = one * u32::try_from(i).expect("few reads");
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }

    /// The least time of a token that computes and misses `n`, in milliseconds. Other programs on
    /// the machine can make a token slower, never faster: the least of some is near the truth.
    fn token_ms(&mut self, n: u64, good_enough: f64) -> f64 {
        let mut least = f64::INFINITY;
        for _ in 0..50 {
            let start = Instant::now();
            std::thread::sleep(FLOOR);
            self.read(n);
            least = least.min(start.elapsed().as_secs_f64() * 1e3);
            if least < good_enough {
                break;
            }
        }
        least
    }
}

#[test]
fn a_throttled_store_takes_the_predicted_time_and_gives_its_constants_back() {
    let mut store = ThrottledStore::new(Duration::ZERO);
    let floor_ms = FLOOR.as_secs_f64() * 1e3;
    let model = TableModel::new(floor_ms, EXPERT_BYTES as u64, GB_PER_S).expect("usable");
    let mut rows = Vec::new();
    for misses in [0, 4, 12, 20] {
        let expected = model.ms_per_token(misses as f64).expect("usable");
        let found = store.token_ms(misses, 1.03 * expected);
        assert!(
            (found / expected - 1.0).abs() < 0.05,
            "{found} for {expected} ms"
        );
        rows.push(DecodeRow {
            misses_per_token: misses as f64,
            tokens_per_s: Rounded::new(1e3 / found, 0.0).expect("positive"),
        });
    }
    let fit = fit(&rows, EXPERT_BYTES as u64).expect("determined").model;
    assert!((fit.gb_per_s() / GB_PER_S - 1.0).abs() < 0.05, "{fit:?}");
    assert!((fit.floor_ms() / floor_ms - 1.0).abs() < 0.1, "{fit:?}");
}

#[test]
fn latency_of_reads_is_predicted_too() {
    let mut store = ThrottledStore::new(LATENCY);
    let parts = DecodeParts {
        gpu_ms: FLOOR.as_secs_f64() * 1e3,
        read_latency_ms: LATENCY.as_secs_f64() * 1e3,
        ..DecodeParts::default()
    };
    let curve = BandwidthCurve::constant(GB_PER_S).expect("positive");
    let model = DecodeModel::new(parts, curve).expect("usable");
    let load = DecodeLoad::uniform(12.0, EXPERT_BYTES as u64, 1.0);
    let expected = model.predict(&load).expect("usable").total_ms;
    let found = store.token_ms(12, 1.03 * expected);
    assert!(
        (found / expected - 1.0).abs() < 0.05,
        "{found} for {expected} ms"
    );
}
