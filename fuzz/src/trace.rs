//! `thalweg-trace`.

use thalweg_trace::{MAGIC, TRAILER_MAGIC, Trace, VERSION};

use crate::input::crc32c;

/// Parses a trace, as it is and with magic numbers, version and checksum put right, and walks over
/// all of it.
pub fn trace(data: &[u8]) {
    walk(data);
    let mut bytes = data.to_vec();
    if bytes.len() < 64 {
        return;
    }
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    let at = bytes.len() - 8;
    let checksum = crc32c(&bytes[..at]);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes[at + 4..].copy_from_slice(&TRAILER_MAGIC);
    walk(&bytes);
}

fn walk(bytes: &[u8]) {
    let Ok(trace) = Trace::parse(bytes) else {
        return;
    };
    let _ = trace.documents().count();
    let n_conflicts = trace.rank_conflicts();
    let (mut n_tokens, mut n_layers, mut n_found) = (0_u64, 0_u64, 0_u64);
    for token in trace.tokens() {
        n_tokens += 1;
        for layer in token.layers() {
            n_layers += 1;
            n_found += u64::from(layer.rank_conflict());
            let _ = (
                layer.experts().count(),
                layer.weights().count(),
                layer.logits().count(),
            );
            let _ = layer.beta_limit();
        }
    }
    assert!(trace.token(n_tokens).is_none());
    assert!(n_layers >= n_tokens);
    assert_eq!(n_found, n_conflicts);
    let mut csv = Vec::new();
    thalweg_trace::export_csv(&trace, &mut csv).expect("memory takes everything");
}
