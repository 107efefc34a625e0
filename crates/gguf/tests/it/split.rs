//! Split models: three shards on disk, and sets that are wrong.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use thalweg_gguf::split::{Place, ShardName, merge};
use thalweg_gguf::{Error, Gguf, Header, Metadata, StreamWriter, TensorSpec, TensorType, Value};

/// One shard to be written: its split keys, other keys, and names of 8-element F32 tensors whose
/// data is the shard's number.
struct Part {
    number: Value,
    count: Value,
    n_tensors: Value,
    extra: Vec<(&'static str, Value)>,
    tensors: Vec<&'static str>,
}

impl Part {
    fn new(number: u16, tensors: &[&'static str]) -> Self {
        Self {
            number: number.into(),
            count: 3_u16.into(),
            n_tensors: 4_i32.into(),
            extra: Vec::new(),
            tensors: tensors.to_vec(),
        }
    }

    fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.extra.push((key, value.into()));
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut metadata = Metadata::new();
        for (key, value) in &self.extra {
            metadata.insert(*key, value.clone()).unwrap();
        }
        metadata.insert("split.no", self.number.clone()).unwrap();
        metadata.insert("split.count", self.count.clone()).unwrap();
        metadata
            .insert("split.tensors.count", self.n_tensors.clone())
            .unwrap();
        let spec = |name: &&str| TensorSpec::new(*name, TensorType::F32, &[8]).unwrap();
        let specs: Vec<TensorSpec> = self.tensors.iter().map(spec).collect();
        let mut writer = StreamWriter::new(Vec::new(), &metadata, &specs).unwrap();
        let Value::U16(number) = self.number else {
            panic!("shard numbers are u16")
        };
        for name in &self.tensors {
            writer.write_tensor(name, &[number as u8 + 1; 32]).unwrap();
        }
        writer.finish().unwrap()
    }

    fn header(&self) -> Header {
        let bytes = self.encode();
        Header::parse(&bytes, bytes.len() as u64).unwrap()
    }
}

/// The usual set: all metadata and no tensor first, the output matrix last, an alignment of its
/// own in the middle.
fn parts() -> [Part; 3] {
    [
        Part::new(0, &[])
            .with("general.architecture", "demo")
            .with("demo.block_count", 2_u32),
        Part::new(1, &["token_embd.weight", "blk.0.x"]).with("general.alignment", 128_u32),
        Part::new(2, &["blk.1.x", "output.weight"]),
    ]
}

fn shard_path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("demo-{:05}-of-00003.gguf", number + 1))
}

fn write_set(parts: &[Part]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (i, part) in parts.iter().enumerate() {
        fs::write(shard_path(folder.path(), i), part.encode()).unwrap();
    }
    folder
}

fn refused(folder: &TempDir, number: usize) -> Error {
    Gguf::open(shard_path(folder.path(), number)).expect_err("the set must be refused")
}

#[test]
fn set_opens_from_any_shard() {
    let folder = write_set(&parts());
    for number in 0..3 {
        let model = Gguf::open(shard_path(folder.path(), number)).unwrap();
        assert_eq!(model.n_shards(), 3);
        let keys: Vec<_> = model.metadata().iter().map(|(key, _)| key).collect();
        assert_eq!(
            keys,
            [
                "general.architecture",
                "demo.block_count",
                "general.alignment"
            ]
        );
        let names: Vec<_> = model
            .tensors()
            .iter()
            .map(|t| (t.name.as_str(), t.file))
            .collect();
        assert_eq!(
            names,
            [
                ("token_embd.weight", 1),
                ("blk.0.x", 1),
                ("blk.1.x", 2),
                ("output.weight", 2)
            ]
        );
        for tensor in model.tensors() {
            assert_eq!(
                model.read_tensor(tensor).unwrap(),
                [tensor.file as u8 + 1; 32]
            );
        }
        for shard in 0..3 {
            assert_eq!(model.path(shard).unwrap(), shard_path(folder.path(), shard));
        }
        assert_eq!(model.alignment_bytes(1), Some(128));
        assert_eq!(model.alignment_bytes(2), Some(32));
        model.verify_unchanged().unwrap();
    }
}

#[test]
fn output_matrix_in_the_last_shard_is_found() {
    let folder = write_set(&parts());
    let model = Gguf::open(shard_path(folder.path(), 0)).unwrap();
    assert_eq!(model.tensor("output.weight").map(|t| t.file), Some(2));
    assert_eq!(model.tensor("absent"), None);
}

#[test]
fn missing_shard_is_named() {
    for (gone, opened) in [(1, 0), (0, 2), (2, 1)] {
        let folder = write_set(&parts());
        fs::remove_file(shard_path(folder.path(), gone)).unwrap();
        let error = refused(&folder, opened);
        assert_eq!(
            error.path(),
            Some(shard_path(folder.path(), gone).as_path())
        );
        assert!(
            matches!(error.root(), Error::MissingShard { number, count: 3 }
                if *number as usize == gone + 1),
            "{error}"
        );
    }
}

#[test]
fn renamed_shards_are_refused() {
    let folder = write_set(&parts());
    let (one, two) = (shard_path(folder.path(), 1), shard_path(folder.path(), 2));
    let spare = folder.path().join("spare");
    fs::rename(&one, &spare).unwrap();
    fs::rename(&two, &one).unwrap();
    fs::rename(&spare, &two).unwrap();
    for opened in 0..3 {
        let error = refused(&folder, opened);
        assert!(matches!(error.root(), Error::SplitNumber { .. }), "{error}");
    }
    let alone = folder.path().join("alone.gguf");
    fs::copy(&one, &alone).unwrap();
    let error = Gguf::open(&alone).unwrap_err();
    assert!(
        matches!(error.root(), Error::NotAShardName { count: 3 }),
        "{error}"
    );
}

#[test]
fn wrong_count_is_refused() {
    let mut set = parts();
    set[1].count = 4_u16.into();
    let folder = write_set(&set);
    for opened in 0..3 {
        let error = refused(&folder, opened);
        assert_eq!(error.path(), Some(shard_path(folder.path(), 1).as_path()));
        assert!(
            matches!(
                error.root(),
                Error::SplitCount {
                    expected: 3,
                    found: 4
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn count_that_is_no_integer_is_refused() {
    for count in [
        Value::from(3.0_f32),
        Value::from("3"),
        Value::from(vec![3_u16]),
    ] {
        let mut set = parts();
        set[0].count = count;
        let error = refused(&write_set(&set), 0);
        assert!(matches!(error.root(), Error::WrongType { .. }), "{error}");
    }
    let mut set = parts();
    set[0].count = (-1_i32).into();
    let error = refused(&write_set(&set), 0);
    assert!(matches!(error.root(), Error::OutOfRange { .. }), "{error}");
}

#[test]
fn plain_file_in_a_shard_s_place_is_refused() {
    let folder = write_set(&parts());
    let plain = StreamWriter::new(Vec::new(), &Metadata::new(), &[])
        .unwrap()
        .finish()
        .unwrap();
    fs::write(shard_path(folder.path(), 1), plain).unwrap();
    let error = refused(&folder, 0);
    assert_eq!(error.path(), Some(shard_path(folder.path(), 1).as_path()));
    assert!(
        matches!(
            error.root(),
            Error::SplitCount {
                expected: 3,
                found: 0
            }
        ),
        "{error}"
    );
}

#[test]
fn damaged_shard_is_named() {
    let folder = write_set(&parts());
    let path = shard_path(folder.path(), 2);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(40)
        .unwrap();
    let error = refused(&folder, 0);
    assert_eq!(error.path(), Some(path.as_path()));
    assert!(
        matches!(error.root(), Error::CountTooLarge { .. }),
        "{error}"
    );
}

#[test]
fn wrong_number_of_tensors_is_refused() {
    let mut set = parts();
    for part in &mut set {
        part.n_tensors = 5_i32.into();
    }
    let error = refused(&write_set(&set), 1);
    assert!(
        matches!(
            error.root(),
            Error::SplitTensorCount {
                expected: 5,
                found: 4
            }
        ),
        "{error}"
    );
    let mut set = parts();
    set[2].n_tensors = 9_i32.into();
    let error = refused(&write_set(&set), 1);
    assert!(
        matches!(
            error.root(),
            Error::SplitTensorCount {
                expected: 4,
                found: 9
            }
        ),
        "{error}"
    );
}

#[test]
fn tensor_in_two_shards_is_refused() {
    let mut set = parts();
    set[2].tensors[0] = "blk.0.x";
    let error = refused(&write_set(&set), 0);
    assert!(
        matches!(error.root(), Error::DuplicateTensor { name } if name == "blk.0.x"),
        "{error}"
    );
}

#[test]
fn shards_of_different_models_are_refused() {
    let mut set = parts();
    set[1].extra.push(("demo.block_count", 3_u32.into()));
    let error = refused(&write_set(&set), 0);
    assert!(
        matches!(error.root(), Error::SplitConflict { shard: 1, key } if key == "demo.block_count"),
        "{error}"
    );
}

#[test]
fn later_shard_may_repeat_and_add_keys() {
    let mut set = parts();
    set[1].extra.push(("demo.block_count", 2_u32.into()));
    set[2].extra.push(("demo.note", "added".into()));
    let folder = write_set(&set);
    let model = Gguf::open(shard_path(folder.path(), 0)).unwrap();
    assert_eq!(model.metadata().str("demo.note").unwrap(), "added");
}

#[test]
fn set_of_one_and_merged_file_open_under_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("any.gguf");
    // llama.cpp's merging tool leaves a count of 0 behind.
    for count in [0_u16, 1] {
        let mut part = Part::new(0, &["a", "b", "c", "d"]);
        part.count = count.into();
        fs::write(&path, part.encode()).unwrap();
        let model = Gguf::open(&path).unwrap();
        assert_eq!((model.n_shards(), model.tensors().len()), (1, 4));
        assert!(model.metadata().is_empty());
    }
}

#[test]
fn merging_headers_in_memory_makes_the_same_checks() {
    let headers = |set: &[Part]| set.iter().map(Part::header).collect::<Vec<_>>();
    let model = merge(headers(&parts())).unwrap();
    assert_eq!(model.tensors.len(), 4);
    assert_eq!(model.metadata.u32("demo.block_count").unwrap(), 2);

    let [a, b, c] = parts();
    let error = merge(headers(&[a, c, b])).unwrap_err();
    assert!(
        matches!(
            error,
            Error::SplitNumber {
                expected: 1,
                found: 2
            }
        ),
        "{error}"
    );
    let error = merge(headers(&parts()[..2])).unwrap_err();
    assert!(
        matches!(
            error,
            Error::SplitCount {
                expected: 2,
                found: 3
            }
        ),
        "{error}"
    );
    let plain = StreamWriter::new(Vec::new(), &Metadata::new(), &[])
        .unwrap()
        .finish()
        .unwrap();
    let plain = || Header::parse(&plain, plain.len() as u64).unwrap();
    assert_eq!(Place::of(&plain()).unwrap(), None);
    assert!(merge(vec![plain()]).is_ok());
    let error = merge(vec![plain(), plain()]).unwrap_err();
    assert!(matches!(error, Error::MissingKey { .. }), "{error}");
    assert!(merge(Vec::new()).unwrap().tensors.is_empty());
}

#[test]
fn names_of_shards() {
    let parse = |name: &str| ShardName::parse(Path::new(name)).map(|n| (n.number(), n.count()));
    assert_eq!(parse("a/m-00001-of-00001.gguf"), Some((0, 1)));
    assert_eq!(parse("m-of-x-00002-of-00030.gguf"), Some((1, 30)));
    assert_eq!(parse("-00002-of-00030.gguf"), Some((1, 30)));
    for bad in [
        "m.gguf",
        "m-00001-of-00003",
        "m-00000-of-00003.gguf",
        "m-00004-of-00003.gguf",
        "m-0001-of-0003.gguf",
        "m-+0001-of-00003.gguf",
        "m-00001-of-00003.gguf.part",
        "00001-of-00003.gguf",
        "",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
    let name = ShardName::parse(Path::new("a/-of-m-00002-of-00003.gguf")).unwrap();
    assert_eq!(name.sibling(0), Path::new("a/-of-m-00001-of-00003.gguf"));
}
