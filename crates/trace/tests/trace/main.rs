//! Whole files: bytes as specified, damage found, nothing written by halves.

mod bytes;
mod csv;
mod logits;
mod write;

use thalweg_trace::{Document, Header, LayerChoice, RecordBuf, Shape, Writer};

pub(crate) const TINY_NONE: &[u8] = include_bytes!("../data/tiny-none.motr");
pub(crate) const TINY_F16: &[u8] = include_bytes!("../data/tiny-f16.motr");
pub(crate) const TINY_F32: &[u8] = include_bytes!("../data/tiny-f32.motr");
pub(crate) const TINY_TOP: &[u8] = include_bytes!("../data/tiny-top.motr");
pub(crate) const PROVENANCE: &str = r#"{"domains": ["en", "ja", "code", "chat"]}"#;

/// As printed in docs/formats/trace.md.
pub(crate) const EXAMPLE_DUMP: &str = "\
0000  4d 4f 54 52 01 00 00 00 01 00 00 00 04 00 00 00
0010  02 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00
0020  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0030  00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0040  02 00 00 00 7b 7d 07 00 00 00 02 00 00 00 e3 ab
0050  f4 48 52 54 4f 4d
";

pub(crate) fn tiny_shape() -> Shape {
    Shape::new(2, 6, 2)
}

pub(crate) fn tiny_row(token: u32, layer: u32) -> Vec<f32> {
    (0..6u32)
        .map(|e| f32::from(((7 * e + 5 * token + 3 * layer) % 11) as u16) / 4.0 - 1.0)
        .collect()
}

pub(crate) fn ranked(row: &[f32]) -> Vec<u16> {
    let mut order: Vec<u16> = (0..).zip(row).map(|(e, _)| e).collect();
    order.sort_by(|&a, &b| row[usize::from(b)].total_cmp(&row[usize::from(a)]));
    order
}

pub(crate) fn tiny_documents() -> [Document; 2] {
    [(0, 1, 0), (2, 1, 3)].map(|(first_token, n_prompt_tokens, domain)| Document {
        first_token,
        n_prompt_tokens,
        domain,
    })
}

pub(crate) fn fingerprint() -> [u8; 32] {
    std::array::from_fn(|i| i as u8)
}

pub(crate) fn tiny_record(record: &mut RecordBuf, token: u32) {
    record.start(1000 + token);
    for layer in 0..2 {
        let row = tiny_row(token, layer);
        let order = ranked(&row);
        let choice = LayerChoice::new(&order[..2])
            .with_weights(&[0.75, 0.25])
            .with_logits(&row);
        record.push_layer(&choice).expect("valid");
    }
}

pub(crate) fn write_tiny(shape: &Shape) -> Vec<u8> {
    let header = Header {
        shape: *shape,
        n_tokens: 3,
        n_docs: 2,
        fingerprint: fingerprint(),
    };
    let mut writer =
        Writer::new(Vec::new(), &header, &tiny_documents(), PROVENANCE).expect("valid");
    let mut record = RecordBuf::new(shape).expect("small");
    for token in 0..3 {
        tiny_record(&mut record, token);
        writer.push(&record).expect("in memory");
    }
    writer.finish().expect("complete")
}

/// Puts the right checksum on damaged contents.
pub(crate) fn reseal(bytes: &mut [u8]) {
    let at = bytes.len() - 8;
    let mut crc = !0u32;
    for &byte in &bytes[..at] {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
        }
    }
    bytes[at..at + 4].copy_from_slice(&(!crc).to_le_bytes());
}

/// One token, one layer.
pub(crate) fn one_layer(shape: &Shape, experts: &[u16], row: &[f32]) -> Vec<u8> {
    let header = Header {
        shape: *shape,
        n_tokens: 1,
        n_docs: 0,
        fingerprint: [0; 32],
    };
    let mut record = RecordBuf::new(shape).expect("small");
    record
        .push_layer(&LayerChoice::new(experts).with_logits(row))
        .expect("valid");
    let mut writer = Writer::new(Vec::new(), &header, &[], "").expect("valid");
    writer.push(&record).expect("in memory");
    writer.finish().expect("complete")
}
