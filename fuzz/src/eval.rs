//! `thalweg-eval`.

use thalweg_eval::base_logits::{BaseHeader, BaseReader, BaseWriter};

/// Reads a file of log-probabilities, as it is; and, behind a first odd byte, with a header of small
/// sizes put in front and as many bytes as it wants. What is accepted has as many rows as the header
/// says, with usable numbers, and the header is written back byte for byte. The bytes, taken as
/// logits, survive being written and read.
pub fn base_logits(data: &[u8]) {
    let Some((mend, data)) = data.split_first() else {
        return;
    };
    read(data);
    if mend % 2 == 1 && data.len() >= 3 {
        let [n_ctx, n_vocab, n_chunks] =
            [3 + data[0] % 10, 1 + data[1] % 20, 1 + data[2] % 3].map(u32::from);
        let mut bytes = b"_logits_".to_vec();
        for number in [n_ctx, n_vocab, n_chunks] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let rest = data.iter().skip(3).chain(std::iter::repeat(&0));
        let mut rest = rest.copied();
        for _ in 0..n_ctx * n_chunks {
            let token = u32::from(rest.next().expect("endless")) % (n_vocab + 1);
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        let row = 2 * (2 * n_vocab.div_ceil(2) + 4);
        let n_rows = (n_ctx - 1 - n_ctx / 2) * n_chunks;
        bytes.extend(rest.take((row * n_rows) as usize));
        read(&bytes);
        write(data, n_vocab as usize);
    }
}

fn read(bytes: &[u8]) {
    let Ok(mut reader) = BaseReader::new(bytes, bytes.len() as u64) else {
        return;
    };
    let header = reader.header().clone();
    assert_eq!(
        header.file_bytes().expect("it was read"),
        bytes.len() as u64
    );
    let writer = BaseWriter::new(header.clone(), Vec::new()).expect("memory takes everything");
    drop(writer);
    let set = header.windows("base").expect("every header has windows");
    assert_eq!(set.windows().len(), header.n_chunks());
    assert_eq!(set.n_scored(), header.rows().len() * header.n_chunks());
    let test = vec![0.0; header.n_vocab()];
    let mut n_rows = 0;
    loop {
        match reader.next_row() {
            Err(_) => return,
            Ok(None) => break,
            Ok(Some(row)) => {
                assert!(header.rows().contains(&row.position));
                assert!(row.chunk < header.n_chunks());
                let last = u32::try_from(header.n_vocab() - 1).expect("31 bits");
                assert!(row.log_prob(last).is_some_and(f32::is_finite));
                let score = row.score(&test, last).expect("one vocabulary");
                assert!(score.kld.is_finite() && score.reference_nll >= -0.02);
                n_rows += 1;
            }
        }
    }
    assert_eq!(n_rows, set.n_scored());
}

/// Logits from bytes, through a file of one row.
fn write(data: &[u8], n_vocab: usize) {
    let logits = data
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let logits: Vec<f32> = logits.chain(std::iter::repeat(0.5)).take(n_vocab).collect();
    let header = BaseHeader::new(3, n_vocab, vec![0; 3]).expect("one chunk");
    let mut writer = BaseWriter::new(header, Vec::new()).expect("memory takes everything");
    if writer.push(&logits).is_err() {
        let possible = logits.iter().any(|z| *z > f32::NEG_INFINITY);
        let bad = logits.iter().any(|z| z.is_nan() || *z == f32::INFINITY);
        assert!(bad || !possible, "{logits:?}");
        return;
    }
    let bytes = writer.finish().expect("complete");
    let mut reader = BaseReader::new(&bytes[..], bytes.len() as u64).expect("own file");
    let row = reader.next_row().expect("own row").expect("one row");
    let log_prob = |id: usize| {
        row.log_prob(u32::try_from(id).expect("few"))
            .expect("in range")
    };
    for (i, z) in logits.iter().enumerate() {
        for (j, other) in logits.iter().enumerate() {
            assert!(
                z <= other || log_prob(i) >= log_prob(j),
                "order of {z} and {other}"
            );
        }
    }
}
