//! What the bytes are, and that no others pass.

use proptest::prelude::*;
use thalweg_trace::{Error, Logits, Trace, f16_from_f32, f32_from_f16};

use super::*;

#[test]
fn the_writer_makes_the_bytes_of_the_specification() {
    let shape = tiny_shape();
    assert_eq!(write_tiny(&shape), TINY_NONE);
    let weighted = shape.with_weights();
    assert_eq!(write_tiny(&weighted.with_logits(Logits::FullF16)), TINY_F16);
    assert_eq!(write_tiny(&shape.with_logits(Logits::FullF32)), TINY_F32);
    assert_eq!(
        write_tiny(&weighted.with_logits(Logits::Top { m: 4 })),
        TINY_TOP
    );
}

#[test]
fn everything_written_is_read_back() {
    for (bytes, weights) in [
        (TINY_NONE, false),
        (TINY_F16, true),
        (TINY_F32, false),
        (TINY_TOP, true),
    ] {
        let trace = Trace::parse(bytes).expect("valid");
        assert_eq!(trace.n_tokens(), 3);
        assert_eq!(trace.header().fingerprint, fingerprint());
        assert_eq!(trace.provenance(), PROVENANCE);
        assert!(trace.documents().eq(tiny_documents()));
        for (position, token) in (0u32..).zip(trace.tokens()) {
            assert_eq!(token.id(), 1000 + position);
            assert_eq!(token.layers().count(), 2);
            for layer in token.layers() {
                let row = tiny_row(position, layer.index());
                assert!(layer.experts().eq(ranked(&row)[..2].iter().copied()));
                let expected: &[f32] = if weights { &[0.75, 0.25] } else { &[] };
                assert!(layer.weights().eq(expected.iter().copied()));
                let mut read = [f32::NAN; 6];
                let has_logits = layer.read_logits(&mut read);
                assert_eq!(has_logits, trace.shape().logits != Logits::None);
                match trace.shape().logits {
                    Logits::None => assert!(read.iter().all(|z| z.is_nan())),
                    Logits::Top { m } => {
                        let least = row.iter().copied().fold(f32::INFINITY, f32::min);
                        let order = ranked(&row);
                        let (kept, left_out) = order.split_at(usize::from(m));
                        for &e in kept {
                            assert_eq!(
                                read[usize::from(e)].to_bits(),
                                row[usize::from(e)].to_bits()
                            );
                        }
                        for &e in left_out {
                            assert_eq!(read[usize::from(e)].to_bits(), least.to_bits());
                        }
                        assert!(layer.logits().map(|(e, _)| e).eq(kept.iter().copied()));
                    }
                    _ => assert!(read.iter().eq(row.iter())),
                }
                assert!(!layer.rank_conflict());
            }
            assert!(token.layer(2).is_none());
        }
        assert!(trace.token(3).is_none());
        assert!(trace.token(u64::MAX).is_none());
        assert_eq!(trace.rank_conflicts(), 0);
    }
}

#[test]
fn every_truncation_and_every_extension_is_found() {
    for bytes in [TINY_NONE, TINY_F16, TINY_F32, TINY_TOP] {
        for len in 0..bytes.len() {
            let error = Trace::parse(&bytes[..len]).expect_err("cut off");
            assert!(
                matches!(error, Error::TooShort { .. } | Error::WrongLength { .. }),
                "{len}: {error}"
            );
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(matches!(
            Trace::parse(&longer),
            Err(Error::WrongLength { .. })
        ));
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for bytes in [TINY_NONE, TINY_F16, TINY_F32, TINY_TOP] {
        let mut damaged = bytes.to_vec();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                damaged[at] ^= 1 << bit;
                assert!(Trace::parse(&damaged).is_err(), "byte {at}, bit {bit}");
                damaged[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn wrong_contents_under_a_right_checksum_are_found() {
    // Offsets: 64 header, 2 x 16 documents, 4 + text, then records of 4 + 2 x layer bytes.
    let records_at = 64 + 32 + 4 + PROVENANCE.len();
    let damage = |bytes: &[u8], at: usize, value: &[u8]| {
        let mut damaged = bytes.to_vec();
        damaged[at..at + value.len()].copy_from_slice(value);
        reseal(&mut damaged);
        Trace::parse(&damaged)
            .expect_err("wrong contents")
            .to_string()
    };
    // Second record, second layer, first expert.
    let at = records_at + 12 + 4 + 4;
    let text = damage(TINY_NONE, at, &6u16.to_le_bytes());
    assert_eq!(
        text,
        "token 1, layer 1: expert 6 is out of range, there are 6"
    );
    let second = [TINY_NONE[at + 2], TINY_NONE[at + 3]];
    let text = damage(TINY_NONE, at, &second);
    let twice = u16::from_le_bytes(second);
    assert_eq!(text, format!("token 1, layer 1: expert {twice} twice"));
    let nan = f16_from_f32(f32::NAN).to_le_bytes();
    let text = damage(TINY_F16, records_at + 4 + 4, &nan);
    assert!(
        text.starts_with("token 0, layer 0: weight 0 is NaN"),
        "{text}"
    );
    let text = damage(TINY_F16, records_at + 4 + 8 + 2, &nan);
    assert!(
        text.starts_with("token 0, layer 0: logit 1 is NaN"),
        "{text}"
    );
    let infinite = f32::INFINITY.to_le_bytes();
    let text = damage(TINY_F32, records_at + 4 + 4, &infinite);
    assert!(
        text.starts_with("token 0, layer 0: logit 0 is inf"),
        "{text}"
    );
    // Top-m: a list that rises, a repeated expert, an unusable least logit.
    let top_at = records_at + 4 + 8;
    let great = f16_from_f32(100.0).to_le_bytes();
    let text = damage(TINY_TOP, top_at + 4 + 2, &great);
    assert!(
        text.starts_with("token 0, layer 0: logit 1 is 100"),
        "{text}"
    );
    let text = damage(TINY_TOP, top_at + 4, &TINY_TOP[top_at..top_at + 2]);
    assert!(text.ends_with("twice"), "{text}");
    let text = damage(TINY_TOP, top_at + 16, &f32::NAN.to_le_bytes());
    assert!(text.contains("least logit"), "{text}");
    // Documents: out of order, beyond the end, a prompt longer than its document.
    let text = damage(TINY_NONE, 64 + 16, &0u64.to_le_bytes());
    assert!(text.contains("first token of document 1 is 0"), "{text}");
    let text = damage(TINY_NONE, 64 + 16, &3u64.to_le_bytes());
    assert!(text.contains("first token of document 1 is 3"), "{text}");
    let text = damage(TINY_NONE, 64 + 8, &3u32.to_le_bytes());
    assert!(text.contains("prompt length of document 0 is 3"), "{text}");
    // Provenance that is not text.
    let text = damage(TINY_NONE, 64 + 32 + 4, &[0xFF]);
    assert!(text.contains("not UTF-8 at byte 100"), "{text}");
}

#[test]
fn the_example_in_the_format_description_is_what_the_writer_makes() {
    let shape = Shape::new(1, 4, 2);
    let header = Header {
        shape,
        n_tokens: 1,
        n_docs: 0,
        fingerprint: [0; 32],
    };
    let mut record = RecordBuf::new(&shape).expect("small");
    record.start(7);
    record
        .push_layer(&LayerChoice::new(&[2, 0]))
        .expect("valid");
    let mut writer = Writer::new(Vec::new(), &header, &[], "{}").expect("valid");
    writer.push(&record).expect("in memory");
    let bytes = writer.finish().expect("complete");
    let dump: String = (0..)
        .zip(bytes.chunks(16))
        .map(|(row, part)| {
            let hex: Vec<String> = part.iter().map(|b| format!("{b:02x}")).collect();
            format!("{:04x}  {}\n", 16 * row, hex.join(" "))
        })
        .collect();
    assert_eq!(dump, EXAMPLE_DUMP);
}

#[test]
fn absurd_sizes_are_refused_at_once() {
    let mut header = *TINY_NONE.first_chunk::<64>().expect("64 bytes");
    for (at, value) in [(20, u64::MAX), (20, u64::MAX / 12), (20, 1 << 61), (20, 4)] {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(&TINY_NONE[64..]);
        let error = Trace::parse(&bytes).expect_err("too many tokens");
        assert!(matches!(error, Error::WrongLength { .. }), "{error}");
    }
    let mut documents = TINY_NONE.to_vec();
    documents[28..32].fill(0xFF);
    assert!(matches!(
        Trace::parse(&documents),
        Err(Error::TooShort { .. })
    ));
    let mut text = TINY_NONE.to_vec();
    text[96..100].fill(0xFF);
    assert!(matches!(Trace::parse(&text), Err(Error::TooShort { .. })));
    // A shape whose record no memory holds.
    let giant = Shape::new(u32::MAX, 1 << 16, u16::MAX).with_logits(Logits::FullF32);
    assert!(matches!(
        RecordBuf::new(&giant),
        Err(Error::OutOfRange { .. })
    ));
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (
        1u32..4,
        1u32..20,
        any::<bool>(),
        0u8..4,
        any::<u16>(),
        any::<u16>(),
    )
        .prop_map(|(n_layer, n_expert, weights, logits, a, b)| {
            let k = 1 + a % n_expert as u16;
            let m = k + b % (n_expert as u16 - k + 1);
            Shape {
                weights,
                ..Shape::new(n_layer, n_expert, k).with_logits(match logits {
                    0 => Logits::None,
                    1 => Logits::FullF16,
                    2 => Logits::FullF32,
                    _ => Logits::Top { m },
                })
            }
        })
}

proptest! {
    #[test]
    fn random_traces_read_back(
        shape in any_shape(),
        n_tokens in 0u32..6,
        values in prop::collection::vec(-40.0f32..40.0, 100),
    ) {
        let header = Header { shape, n_tokens: n_tokens.into(), n_docs: 0, fingerprint: [1; 32] };
        let mut writer = Writer::new(Vec::new(), &header, &[], "{}").expect("valid");
        let mut record = RecordBuf::new(&shape).expect("small");
        let row = |token: u32, layer: u32| -> Vec<f32> {
            let start = (token * 7 + layer * 3) as usize;
            values.iter().cycle().skip(start).take(shape.n_expert as usize).copied().collect()
        };
        let k = usize::from(shape.k);
        for token in 0..n_tokens {
            record.start(token);
            for layer in 0..shape.n_layer {
                let row = row(token, layer);
                let order = ranked(&row);
                let choice = LayerChoice::new(&order[..k])
                    .with_weights(&row[..k])
                    .with_logits(&row);
                record.push_layer(&choice).expect("valid");
            }
            writer.push(&record).expect("in memory");
        }
        let bytes = writer.finish().expect("complete");
        let trace = Trace::parse(&bytes).expect("valid");
        let half = |z: f32| f32_from_f16(f16_from_f32(z));
        for (position, token) in (0..).zip(trace.tokens()) {
            for layer in token.layers() {
                let row = row(position, layer.index());
                prop_assert!(layer.experts().eq(ranked(&row)[..k].iter().copied()));
                if shape.weights {
                    prop_assert!(layer.weights().eq(row[..k].iter().map(|&w| half(w))));
                }
                for (expert, logit) in layer.logits() {
                    let z = row[usize::from(expert)];
                    let kept = if shape.logits == Logits::FullF32 { z } else { half(z) };
                    prop_assert_eq!(logit.to_bits(), kept.to_bits());
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        mut bytes in prop::sample::select(vec![TINY_NONE, TINY_F16, TINY_F32, TINY_TOP])
            .prop_map(<[u8]>::to_vec),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        seal in any::<bool>(),
    ) {
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if seal {
            reseal(&mut bytes);
        }
        if let Ok(trace) = Trace::parse(&bytes) {
            let _ = trace.rank_conflicts();
            let _ = trace.check_beta(1.0);
            for token in trace.tokens() {
                prop_assert_eq!(token.layers().count(), trace.shape().n_layer as usize);
                for layer in token.layers() {
                    prop_assert!(layer.experts().all(|e| u32::from(e) < trace.shape().n_expert));
                }
            }
        }
    }

    #[test]
    fn any_bytes_at_all_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Trace::parse(&bytes).is_err());
    }
}
