//! The writer: what it refuses, and what it leaves behind.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tempfile::TempDir;
use thalweg_gguf::{
    Error, Gguf, MAX_HEADER_BYTES, Metadata, StreamWriter, TensorSpec, TensorType, Writer,
};

fn specs(names: &[&str]) -> Vec<TensorSpec> {
    names
        .iter()
        .map(|name| TensorSpec::new(*name, TensorType::F32, &[4]).unwrap())
        .collect()
}

fn names_in(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn start(path: &Path) -> Writer {
    Writer::create(path, &Metadata::new(), &specs(&["a", "b"])).unwrap()
}

#[test]
fn file_appears_only_when_it_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut writer = start(&path);
    writer.write_tensor("a", &[1; 16]).unwrap();
    writer.write_tensor("b", &[2; 16]).unwrap();
    assert!(!path.exists());
    assert_eq!(names_in(&folder).len(), 1);
    let directory = writer.tensors().to_vec();
    writer.finish().unwrap();
    assert_eq!(names_in(&folder), ["m.gguf"]);
    let model = Gguf::open(&path).unwrap();
    assert_eq!(model.tensors(), directory);
    assert_eq!(
        model.read_tensor(model.tensor("b").unwrap()).unwrap(),
        [2; 16]
    );
}

#[test]
fn dropped_writer_leaves_nothing_and_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, "old").unwrap();
    let mut writer = start(&path);
    writer.write_tensor("a", &[1; 16]).unwrap();
    drop(writer);
    assert_eq!(names_in(&folder), ["m.gguf"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
}

#[test]
fn unfinished_file_is_refused_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut writer = start(&path);
    writer.write_tensor("a", &[1; 16]).unwrap();
    writer.write_chunk("b", &[1; 5]).unwrap();
    let error = writer.finish().unwrap_err();
    assert_eq!(error.path(), Some(path.as_path()));
    assert!(
        matches!(
            error.root(),
            Error::DataLength {
                expected_bytes: 16,
                found_bytes: 5
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("tensor `b`"), "{error}");
    assert!(names_in(&folder).is_empty());
}

#[test]
fn two_writers_of_one_path_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let (mut one, mut two) = (start(&path), start(&path));
    for name in ["a", "b"] {
        one.write_tensor(name, &[1; 16]).unwrap();
        two.write_tensor(name, &[2; 16]).unwrap();
    }
    one.finish().unwrap();
    two.finish().unwrap();
    let model = Gguf::open(&path).unwrap();
    assert_eq!(model.read_tensor(&model.tensors()[0]).unwrap(), [2; 16]);
}

#[test]
fn wrong_amounts_and_orders_are_refused_without_writing() {
    let mut writer = StreamWriter::new(Vec::new(), &Metadata::new(), &specs(&["a", "b"])).unwrap();
    let refused = |error: Error| matches!(error.root(), Error::DataLength { .. });
    assert!(refused(writer.write_tensor("a", &[0; 15]).unwrap_err()));
    assert!(refused(writer.write_tensor("a", &[0; 17]).unwrap_err()));
    assert!(refused(writer.write_chunk("a", &[0; 17]).unwrap_err()));
    let error = writer.write_tensor("b", &[0; 16]).unwrap_err();
    assert!(
        matches!(&error, Error::OutOfTurn { expected: Some(due), found }
            if due == "a" && found == "b"),
        "{error}"
    );
    writer.write_chunk("a", &[7; 10]).unwrap();
    assert!(
        refused(writer.write_tensor("a", &[0; 16]).unwrap_err()),
        "already begun"
    );
    assert!(refused(writer.write_chunk("a", &[0; 7]).unwrap_err()));
    writer.write_chunk("a", &[]).unwrap();
    writer.write_chunk("a", &[8; 6]).unwrap();
    writer.write_tensor("b", &[9; 16]).unwrap();
    let error = writer.write_chunk("b", &[0]).unwrap_err();
    assert!(
        matches!(error, Error::OutOfTurn { expected: None, .. }),
        "{error}"
    );
    let a = writer.tensors()[0].clone();
    let bytes = writer.finish().unwrap();
    let range = a.offset_bytes as usize..a.end_bytes() as usize;
    assert_eq!(
        bytes[range],
        [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8]
    );
}

#[test]
fn bad_declarations_are_refused() {
    let new = |name: &str, shape: &[u64]| TensorSpec::new(name, TensorType::Q2_0, shape);
    for (name, shape) in [
        ("", &[64][..]),
        (&"n".repeat(64), &[64]),
        ("t", &[]),
        ("t", &[64, 1, 1, 1, 1]),
        ("t", &[0]),
        ("t", &[64, 0]),
        ("t", &[63]),
        ("t", &[64, u64::MAX]),
    ] {
        let error = new(name, shape).unwrap_err();
        assert!(matches!(error, Error::InTensor { .. }), "{error}");
    }
    let stream = |metadata: &Metadata, specs: &[TensorSpec]| {
        StreamWriter::new(io::sink(), metadata, specs).unwrap_err()
    };
    let error = stream(&Metadata::new(), &specs(&["a", "b", "a"]));
    assert!(
        matches!(&error, Error::DuplicateTensor { name } if name == "a"),
        "{error}"
    );
    let mut metadata = Metadata::new();
    metadata.insert("general.alignment", 24_u32).unwrap();
    let error = stream(&metadata, &[]);
    assert!(
        matches!(error, Error::BadAlignment { found: 24, .. }),
        "{error}"
    );
    let huge = TensorSpec::new("t", TensorType::I8, &[i64::MAX as u64]).unwrap();
    let error = stream(&Metadata::new(), &[huge]);
    assert!(
        matches!(error.root(), Error::ShapeTooLarge { .. }),
        "{error}"
    );
}

#[test]
fn header_that_no_reader_would_take_is_not_written() {
    let mut metadata = Metadata::new();
    metadata
        .insert("k", vec![0_u8; MAX_HEADER_BYTES as usize])
        .unwrap();
    let error = StreamWriter::new(io::sink(), &metadata, &[]).unwrap_err();
    assert!(matches!(error, Error::HeaderTooLarge { .. }), "{error}");
}

/// A sink that is full after so many bytes.
#[derive(Debug)]
struct Full {
    left: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.left);
        self.left -= n;
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_disk_is_an_error_wherever_it_strikes() {
    let specs = specs(&["a", "b"]);
    let whole = {
        let mut writer = StreamWriter::new(Vec::new(), &Metadata::new(), &specs).unwrap();
        writer.write_tensor("a", &[0; 16]).unwrap();
        writer.write_tensor("b", &[0; 16]).unwrap();
        writer.finish().unwrap().len()
    };
    for left in 0..=whole {
        let result = (|| {
            let mut writer = StreamWriter::new(Full { left }, &Metadata::new(), &specs)?;
            writer.write_tensor("a", &[0; 16])?;
            writer.write_tensor("b", &[0; 16])?;
            writer.finish()
        })();
        match result {
            Ok(_) => assert_eq!(left, whole),
            Err(Error::Write { cause, .. }) => {
                assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn failed_writer_cannot_be_finished() {
    let specs = specs(&["a"]);
    let mut probe = StreamWriter::new(Vec::new(), &Metadata::new(), &specs).unwrap();
    probe.write_tensor("a", &[0; 16]).unwrap();
    let left = probe.finish().unwrap().len() - 20;
    let mut writer = StreamWriter::new(Full { left }, &Metadata::new(), &specs).unwrap();
    assert!(matches!(
        writer.write_tensor("a", &[0; 16]),
        Err(Error::Write { .. })
    ));
    assert!(matches!(
        writer.write_chunk("a", &[0; 4]),
        Err(Error::WriterFailed)
    ));
    assert!(matches!(writer.finish(), Err(Error::WriterFailed)));
}

#[test]
fn path_without_a_name_or_folder_is_refused() {
    for path in ["/", "..", "absent-folder/m.gguf"] {
        let error = Writer::create(path, &Metadata::new(), &[]).unwrap_err();
        assert!(
            matches!(
                error.root(),
                Error::System {
                    operation: "create",
                    ..
                }
            ),
            "{error}"
        );
    }
}
