//! Files on disk: positioned reads, large offsets, changes under an open model.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use thalweg_gguf::{Error, Gguf, Metadata, TensorSpec, TensorType, Writer};

use crate::raw::{F32, Raw};

/// A file of two tensors: `a` of 8 bytes, then `b` of 256 rising bytes.
fn two_tensors() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.gguf");
    write_two(&path, 0);
    (folder, path)
}

fn write_two(path: &Path, first: u8) {
    let specs = [
        TensorSpec::new("a", TensorType::F32, &[2]).unwrap(),
        TensorSpec::new("b", TensorType::I8, &[16, 16]).unwrap(),
    ];
    let mut writer = Writer::create(path, &Metadata::new(), &specs).unwrap();
    writer.write_tensor("a", &[first; 8]).unwrap();
    writer
        .write_tensor("b", &(0..=255).collect::<Vec<u8>>())
        .unwrap();
    writer.finish().unwrap();
}

#[test]
fn open_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Gguf>();

    let (_folder, path) = two_tensors();
    let model = Gguf::open(&path).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4_u8 {
            let model = &model;
            scope.spawn(move || {
                let b = model.tensor("b").unwrap();
                let mut row = [0; 16];
                for i in 0..100_u8 {
                    let offset = (i % 16) * 16;
                    model.read_tensor_range(b, offset.into(), &mut row).unwrap();
                    assert_eq!(row[15], offset + 15, "thread {part}");
                }
            });
        }
    });
}

#[test]
fn ranges_stay_inside_their_tensor() {
    let (_folder, path) = two_tensors();
    let model = Gguf::open(&path).unwrap();
    let b = model.tensor("b").unwrap();
    let mut buffer = [0; 4];
    model.read_tensor_range(b, 252, &mut buffer).unwrap();
    assert_eq!(buffer, [252, 253, 254, 255]);
    model.read_tensor_range(b, 256, &mut []).unwrap();
    for offset in [253, 256, u64::MAX, u64::MAX - 3] {
        let error = model.read_tensor_range(b, offset, &mut buffer).unwrap_err();
        assert!(
            matches!(
                error.root(),
                Error::OutsideTensor {
                    wanted_bytes: 4,
                    size_bytes: 256,
                    ..
                }
            ),
            "{error}"
        );
    }
    let error = model.read_at(1, 0, &mut buffer).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoSuchShard {
                shard: 1,
                n_shards: 1
            }
        ),
        "{error}"
    );
    let error = model.read_at(0, 1 << 40, &mut buffer).unwrap_err();
    assert!(
        matches!(error.root(), Error::UnexpectedEnd { got_bytes: 0, .. }),
        "{error}"
    );
}

#[test]
fn tensor_beyond_4_gib_is_read_from_its_place() {
    const PLACE: u64 = (4 << 30) + 32;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let header = |offset| {
        Raw::new(2, 0)
            .tensor("low", &[8], F32, 0)
            .tensor("high", &[8], F32, offset)
    };
    let start = header(0).0.len().next_multiple_of(32) as u64;
    let mut file = File::create_new(&path).unwrap();
    file.write_all(&header(PLACE - start).data(32, 0).0)
        .unwrap();
    file.write_all(&[1; 32]).unwrap(); // also where a 32-bit offset would end up
    file.seek(SeekFrom::Start(PLACE)).unwrap();
    file.write_all(&[2; 32]).unwrap();
    file.set_len(5 << 30).unwrap();

    let model = Gguf::open(&path).unwrap();
    let high = model.tensor("high").unwrap();
    assert_eq!(high.offset_bytes, PLACE);
    assert_eq!(model.read_tensor(high).unwrap(), [2; 32]);
    assert_eq!(
        model.read_tensor(model.tensor("low").unwrap()).unwrap(),
        [1; 32]
    );
}

#[test]
fn truncation_while_open_is_noticed() {
    let (_folder, path) = two_tensors();
    let model = Gguf::open(&path).unwrap();
    model.verify_unchanged().unwrap();
    let b = model.tensor("b").unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(b.offset_bytes + 100)
        .unwrap();

    let error = model.read_tensor(b).unwrap_err();
    assert_eq!(error.path(), Some(path.as_path()));
    match error.root() {
        Error::UnexpectedEnd {
            offset_bytes,
            wanted_bytes: 256,
            got_bytes: 100,
        } => {
            assert_eq!(*offset_bytes, b.offset_bytes);
        }
        _ => panic!("{error}"),
    }
    let error = model.verify_unchanged().unwrap_err();
    assert!(
        matches!(
            error.root(),
            Error::Changed {
                what: "length of the open file",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn replacement_while_open_is_noticed_and_reads_stay_with_the_old_file() {
    let (_folder, path) = two_tensors();
    let model = Gguf::open(&path).unwrap();
    write_two(&path, 9);
    let error = model.verify_unchanged().unwrap_err();
    assert_eq!(error.path(), Some(path.as_path()));
    assert!(matches!(error.root(), Error::Changed { .. }), "{error}");
    if cfg!(unix) {
        assert!(error.to_string().contains("identity on disk"), "{error}");
        assert_eq!(
            model.read_tensor(model.tensor("a").unwrap()).unwrap(),
            [0; 8]
        );
    }
    Gguf::open(&path).unwrap().verify_unchanged().unwrap();
}

#[test]
fn change_in_place_is_noticed_by_its_time() {
    let (_folder, path) = two_tensors();
    let model = Gguf::open(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3600))
        .unwrap();
    let error = model.verify_unchanged().unwrap_err();
    assert!(
        matches!(
            error.root(),
            Error::Changed {
                what: "modification time",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn removal_while_open_is_noticed() {
    let (_folder, path) = two_tensors();
    let model = Gguf::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = model.verify_unchanged().unwrap_err();
    assert!(
        matches!(error.root(), Error::System { cause, .. }
            if cause.kind() == std::io::ErrorKind::NotFound),
        "{error}"
    );
}

#[test]
fn equal_files_have_equal_header_hashes() {
    let (_one, first) = two_tensors();
    let (_two, second) = two_tensors();
    let identity = |path: &Path| Gguf::open(path).unwrap().identity(0).unwrap().clone();
    assert_eq!(identity(&first), identity(&first));
    assert_eq!(identity(&first).header_hash, identity(&second).header_hash);
    assert_eq!(
        identity(&first).len_bytes,
        fs::metadata(&first).unwrap().len()
    );
    if cfg!(unix) {
        assert_ne!(identity(&first).file_id, identity(&second).file_id);
    }
}

#[test]
fn what_is_no_file_is_refused_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let error = Gguf::open(folder.path()).unwrap_err();
    assert!(matches!(error.root(), Error::NotAFile), "{error}");
    let absent = folder.path().join("absent.gguf");
    let error = Gguf::open(&absent).unwrap_err();
    assert!(
        matches!(
            error.root(),
            Error::System {
                operation: "open",
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().starts_with(absent.to_str().unwrap()),
        "{error}"
    );
    let empty = folder.path().join("empty.gguf");
    File::create_new(&empty).unwrap();
    let error = Gguf::open(&empty).unwrap_err();
    assert!(
        matches!(
            error.root(),
            Error::Truncated {
                offset_bytes: 0,
                ..
            }
        ),
        "{error}"
    );
}
