//! The sidecar format of `thalweg-store`.

use thalweg_store::bundle::{BUNDLE_MAGIC, BundleHeader};

/// Parses the header of a file of bundled experts, filled up with zeros to a whole one. If the first
/// byte is odd, the magic number and everything that follows from the lengths is put in order first,
/// so that any lengths are reached. What is accepted is written back byte for byte, and its bundles
/// lie one after the other.
pub fn sidecar(data: &[u8]) {
    let Some((mend, data)) = data.split_first() else {
        return;
    };
    let mut bytes = data.to_vec();
    accept(&bytes);
    bytes.resize(bytes.len().next_multiple_of(16 << 10), 0);
    accept(&bytes);
    if mend % 2 == 1 {
        mend_header(&mut bytes);
        accept(&bytes);
    }
}

/// Puts in order what follows from the other fields, as far as the bytes go.
fn mend_header(bytes: &mut Vec<u8>) {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(word)
    };
    fn put(bytes: &mut [u8], at: usize, value: u64, n_bytes: usize) {
        bytes[at..at + n_bytes].copy_from_slice(&value.to_le_bytes()[..n_bytes]);
    }
    if bytes.len() < 56 {
        return;
    }
    bytes[..4].copy_from_slice(&BUNDLE_MAGIC);
    put(bytes, 4, 1, 4);
    put(bytes, 8, 16 << 10, 4);
    // Few enough that the header stays small.
    let n_layer = word(bytes, 12) as usize % 20;
    let n_expert = word(bytes, 16) as usize % 70;
    put(bytes, 12, n_layer as u64, 4);
    put(bytes, 16, n_expert as u64, 4);
    let index = 56 + 32 * n_layer;
    let header = (index + 16 * n_layer * n_expert).next_multiple_of(16 << 10);
    bytes.resize(header, 0);
    let lens: Vec<u64> = (0..n_layer)
        .map(|l| {
            (0..3)
                .map(|i| u64::from(word(bytes, 56 + 32 * l + 12 + 4 * i)))
                .sum()
        })
        .collect();
    let strides: Vec<u64> = lens.iter().map(|n| n.next_multiple_of(16 << 10)).collect();
    let mut classes = strides.clone();
    classes.sort_unstable();
    classes.dedup();
    put(bytes, 20, classes.len() as u64, 4);
    let mut offset = header as u64;
    for (l, (len, stride)) in lens.iter().zip(&strides).enumerate() {
        let class = classes.binary_search(stride).expect("one of them");
        put(bytes, 56 + 32 * l + 24, class as u64, 4);
        put(bytes, 56 + 32 * l + 28, *stride, 4);
        for expert in 0..n_expert {
            let entry = index + 16 * (l * n_expert + expert);
            put(bytes, entry, if *len == 0 { 0 } else { offset }, 8);
            put(bytes, entry + 8, *len, 4);
            if *len == 0 {
                put(bytes, entry + 12, 0, 4);
            }
            offset += stride;
        }
    }
    bytes[index + 16 * n_layer * n_expert..].fill(0);
}

fn accept(bytes: &[u8]) {
    let Ok(header) = BundleHeader::parse(bytes) else {
        return;
    };
    let shape = header.shape();
    let written = header.to_bytes();
    assert_eq!(written.len() as u64, shape.header_bytes());
    assert_eq!(written, bytes[..written.len()]);
    let layout = shape.layout().expect("every length was checked");
    let mut end = shape.header_bytes();
    for layer in 0..shape.n_layer() {
        let n_expert = shape.n_expert(layer);
        assert_eq!(layout.n_expert(layer), n_expert);
        for expert in 0..n_expert {
            let id = u16::try_from(expert).expect("ids are 16 bits");
            let segments = layout.segments(layer, id).expect("in range");
            assert_eq!(segments.len(), 1, "one read an expert");
            let (at, len) = (segments[0].offset_bytes, segments[0].len_bytes as u64);
            assert_eq!(Some(at), header.offset_bytes(layer, expert));
            assert!(header.checksum(layer, expert).is_some());
            assert_eq!(at, end);
            end = (at + len).next_multiple_of(16 << 10);
        }
        assert_eq!(header.checksum(layer, n_expert), None);
    }
    assert_eq!(shape.file_bytes(), end);
}
