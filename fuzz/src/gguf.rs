//! `thalweg-gguf`.

use std::collections::HashSet;

use thalweg_gguf::{Header, Metadata, StreamWriter, TensorSpec, TensorType, split};

use crate::input::Input;

/// Parses a GGUF header, behind magic number and version if the input has none of its own. What is
/// accepted must lie in the file and survive being written and read again.
pub fn gguf(data: &[u8]) {
    let mut bytes = Vec::with_capacity(data.len() + 8);
    if !data.starts_with(b"GGUF") {
        bytes.extend_from_slice(b"GGUF\x03\0\0\0");
    }
    bytes.extend_from_slice(data);
    let len = bytes.len() as u64;
    // Tensors find room only if the file goes on beyond its header.
    for file_len in [len, len + (1 << 20)] {
        if let Ok(header) = Header::parse(&bytes, file_len) {
            check(&header, file_len);
            let _ = split::Place::of(&header);
        }
    }
}

/// Merges up to five headers, small ones whose split keys and tensor names are decided by the
/// input. What is accepted must be complete and without duplicates.
pub fn splits(data: &[u8]) {
    let mut input = Input::new(data);
    let n_headers = input.below(6);
    let mut headers = Vec::new();
    let (mut n_tensors, mut all_names) = (0, Vec::new());
    for _ in 0..n_headers {
        let mut metadata = Metadata::new();
        for key in [split::NUMBER_KEY, split::COUNT_KEY, split::TENSOR_COUNT_KEY] {
            let value = input.byte();
            let is_new = match input.below(8) {
                0 => continue,
                1 => metadata.insert(key, value),
                2 => metadata.insert(key, u64::from(value) << 56),
                3 => metadata.insert(key, i32::from(value) - 128),
                4 => metadata.insert(key, "1"),
                5 => metadata.insert(key, i32::from(value % 8)),
                _ => metadata.insert(key, u16::from(value % 8)),
            };
            is_new.expect("each key comes once");
        }
        let names: HashSet<usize> = (0..input.below(4)).map(|_| input.below(16)).collect();
        let specs: Vec<TensorSpec> = names
            .iter()
            .map(|name| TensorSpec::new(format!("t{name}"), TensorType::F32, &[1]).expect("valid"))
            .collect();
        n_tensors += specs.len();
        all_names.extend(names);
        headers.push(written(&metadata, &specs));
    }
    let Ok(model) = split::merge(headers) else {
        return;
    };
    let unique: HashSet<_> = all_names.iter().collect();
    assert_eq!(unique.len(), n_tensors, "a duplicate tensor was accepted");
    assert_eq!(model.tensors.len(), n_tensors);
    assert!(model.tensors.iter().all(|tensor| tensor.file < n_headers));
}

fn check(header: &Header, file_len: u64) {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut specs = Vec::new();
    for tensor in header.tensors() {
        assert!(tensor.offset_bytes >= header.data_start_bytes());
        assert!(tensor.end_bytes() <= file_len);
        assert_eq!(tensor.row_bytes() * tensor.n_rows(), tensor.size_bytes);
        ranges.push((tensor.offset_bytes, tensor.end_bytes()));
        specs.push(TensorSpec::like(tensor).expect("what was read can be written"));
    }
    ranges.sort_unstable();
    assert!(
        ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "overlapping tensors"
    );

    let again = written(header.metadata(), &specs);
    assert_eq!(again.alignment_bytes(), header.alignment_bytes());
    assert_eq!(again.metadata().len(), header.metadata().len());
    for ((key, value), (key_again, value_again)) in
        header.metadata().iter().zip(again.metadata().iter())
    {
        assert_eq!(key, key_again);
        // As text: NaN equals nothing.
        assert_eq!(format!("{value:?}"), format!("{value_again:?}"));
    }
    for (tensor, tensor_again) in header.tensors().iter().zip(again.tensors()) {
        assert_eq!(
            (&tensor.name, tensor.ty, tensor.ne),
            (&tensor_again.name, tensor_again.ty, tensor_again.ne)
        );
    }
}

/// The header of a file with this content, by way of the writer.
fn written(metadata: &Metadata, specs: &[TensorSpec]) -> Header {
    let mut head = HeadOnly::default();
    let writer = StreamWriter::new(&mut head, metadata, specs).expect("the parts are valid");
    let end = writer.tensors().last().map(|tensor| tensor.end_bytes());
    drop(writer);
    let file_len = end.unwrap_or(0).max(head.bytes.len() as u64);
    Header::parse(&head.bytes, file_len).expect("what was written can be read")
}

/// Keeps what is written before any tensor data: nobody writes any here.
#[derive(Default)]
struct HeadOnly {
    bytes: Vec<u8>,
}

impl std::io::Write for HeadOnly {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
