//! Files that change while they are open, and files that are no files.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, SystemTime};

use thalweg_store::{
    Change, Error, ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, FileSet,
    PreadBackend, ReadMode, RowTable,
};

use crate::fixture::{Fixture, chain};

/// Moves a file's time, so that the test does not depend on the clock's step.
fn touch(path: &std::path::Path) {
    let later = SystemTime::now() + Duration::from_secs(5);
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(later)
        .unwrap();
}

fn change_of(error: Error) -> Change {
    match error {
        Error::FileChanged { change, .. } => change,
        other => panic!("{other}"),
    }
}

#[test]
fn a_truncated_file_is_noticed_at_the_next_read() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    drop(store.acquire(0, 0, &[1]).unwrap());
    let expected_bytes = fixture.bytes[0].len() as u64;
    OpenOptions::new()
        .write(true)
        .open(&fixture.paths[0])
        .unwrap()
        .set_len(100)
        .unwrap();
    // Reading fails at the end of the file; the reason given is what happened to the file.
    let error = store.acquire(1, 0, &[1, 2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} changed while it was open: it had {expected_bytes} bytes and has 100; open it \
             again",
            fixture.paths[0].display()
        )
    );
    assert!(!store.is_resident(0, 2));
    store.validate().unwrap();
    // A part that lies within what is left is refused as well.
    assert!(matches!(
        change_of(store.acquire(2, 0, &[0]).unwrap_err()),
        Change::Length { .. }
    ));
}

#[test]
fn a_grown_file_is_noticed() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    OpenOptions::new()
        .append(true)
        .open(&fixture.paths[1])
        .unwrap()
        .write_all(b"more")
        .unwrap();
    assert!(matches!(
        change_of(store.acquire(0, 3, &[0]).unwrap_err()),
        Change::Length { .. }
    ));
}

#[test]
fn a_replaced_file_is_noticed() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    let new = fixture.paths[0].with_extension("new");
    fs::write(&new, &fixture.bytes[0]).unwrap();
    fs::rename(&new, &fixture.paths[0]).unwrap();
    let change = change_of(store.acquire(0, 0, &[0]).unwrap_err());
    assert_eq!(change, Change::Replaced);
    store.validate().unwrap();
}

#[test]
fn a_file_written_in_place_is_noticed() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    let mut file = OpenOptions::new()
        .write(true)
        .open(&fixture.paths[1])
        .unwrap();
    file.write_all(b"other weights").unwrap();
    drop(file);
    touch(&fixture.paths[1]);
    assert_eq!(
        change_of(store.acquire(0, 0, &[0]).unwrap_err()),
        Change::Modified
    );
}

#[test]
fn a_removed_file_is_noticed() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    fs::remove_file(&fixture.paths[1]).unwrap();
    assert_eq!(
        change_of(store.acquire(0, 0, &[0]).unwrap_err()),
        Change::Missing
    );
}

#[test]
fn a_file_that_comes_back_unchanged_is_accepted_again() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    let away = fixture.paths[1].with_extension("away");
    fs::rename(&fixture.paths[1], &away).unwrap();
    assert!(store.acquire(0, 0, &[0]).is_err());
    fs::rename(&away, &fixture.paths[1]).unwrap();
    fixture.check(&store.acquire(1, 0, &[0]).unwrap(), 0, &[0]);
}

#[test]
fn residents_stay_usable_when_their_file_has_changed() {
    let fixture = Fixture::new();
    let mut store = fixture.store(3);
    drop(store.acquire(0, 0, &[0, 1]).unwrap());
    touch(&fixture.paths[0]);
    // Nothing is read, so nothing can be mixed: they are the weights that were opened.
    fixture.check(&store.acquire(1, 0, &[1, 0]).unwrap(), 0, &[1, 0]);
    assert!(store.acquire(2, 0, &[2]).is_err());
}

#[test]
fn a_changed_file_is_not_cached_by_a_row_table() {
    let fixture = Fixture::new();
    let mut table = RowTable::new(fixture.files(), 0, 0, 16, 100, 1 << 20).unwrap();
    touch(&fixture.paths[0]);
    let mut out = [0; 16];
    // Were the block cached by the first attempt, the second would succeed without a read.
    for _ in 0..2 {
        assert_eq!(
            change_of(table.fetch(&[3_u32], &mut out).unwrap_err()),
            Change::Modified
        );
        table.validate().unwrap();
    }
    assert_eq!(table.stats().failures, 2);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = FileSet::open(&[dir.path()]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{} is not a regular file", dir.path().display())
    );
    let missing = dir.path().join("nothing");
    let error = FileSet::open(&[&missing]).unwrap_err();
    assert!(chain(&error).starts_with(&format!("cannot open {}: ", missing.display())));
}

#[test]
fn a_set_knows_its_files_and_refuses_others() {
    let fixture = Fixture::new();
    let files = fixture.files();
    assert_eq!((files.len(), files.is_empty()), (2, false));
    assert_eq!(files.path(1), Some(fixture.paths[1].as_path()));
    assert_eq!(files.len_bytes(0), Some(fixture.bytes[0].len() as u64));
    assert_eq!((files.path(2), files.len_bytes(2)), (None, None));
    files.verify_unchanged().unwrap();
    assert!(matches!(
        files.verify(2),
        Err(Error::NoSuchFile {
            file: 2,
            n_files: 2
        })
    ));
    assert!(FileSet::open::<&str>(&[]).unwrap().is_empty());
}

#[test]
fn another_header_is_noticed_though_length_and_time_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    fs::write(&path, vec![7; 200_000]).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let files = FileSet::open(&[&path]).unwrap();
    let write = |at, byte| {
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[byte]).unwrap();
        file.set_modified(modified).unwrap();
    };
    files.verify_header(0).unwrap();
    // The last byte of the header, and the first behind it.
    write(65_535, 8);
    files.verify(0).unwrap();
    let error = files.verify_header(0).unwrap_err();
    assert!(error.to_string().contains("its first bytes are others"));
    assert_eq!(change_of(error), Change::Header);
    write(65_535, 7);
    write(65_536, 8);
    files.verify_header(0).unwrap();
    assert!(matches!(
        files.verify_header(1),
        Err(Error::NoSuchFile { .. })
    ));
}

#[test]
fn headers_shorter_than_the_hash_covers_are_hashed_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("empty"), dir.path().join("short")];
    for (path, content) in paths.iter().zip([&b""[..], b"GGUF"]) {
        fs::write(path, content).unwrap();
    }
    let files = FileSet::open(&paths).unwrap();
    for (file, path) in paths.iter().enumerate() {
        files.verify_header(file).unwrap();
        fs::write(path, b"gguf").unwrap();
        assert!(files.verify_header(file).is_err());
    }
}

#[test]
fn a_set_says_which_files_are_read_directly() {
    let fixture = Fixture::new();
    let files = fixture.files();
    assert_eq!(files.mode(2), None);
    let buffered = FileSet::open_buffered(&fixture.paths).unwrap();
    assert_eq!(buffered.mode(0), Some(ReadMode::Buffered));
    assert_eq!(buffered.first_buffered(), Some(fixture.paths[0].as_path()));
    // Whether this folder allows it is what a direct file of the same path says.
    for (i, path) in fixture.paths.iter().enumerate() {
        let alone = thalweg_store::DirectFile::open(path).unwrap();
        assert_eq!(files.mode(i), Some(alone.mode()));
    }
    let first = files.first_buffered();
    assert_eq!(first.is_none(), files.mode(0) == Some(ReadMode::Direct));
}

#[test]
fn offsets_beyond_four_gib_are_read_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let mut file = File::create(&path).unwrap();
    let far = (5_u64 << 30) + 32;
    file.seek(SeekFrom::Start(far)).unwrap();
    file.write_all(&[1; 64]).unwrap();
    file.write_all(&[2; 64]).unwrap();
    // What a 32-bit offset would find instead.
    file.seek(SeekFrom::Start(far & u64::from(u32::MAX)))
        .unwrap();
    file.write_all(&[9; 128]).unwrap();
    drop(file);

    let files = FileSet::open(&[&path]).unwrap();
    let mut layout = ExpertLayout::new();
    let part = ExpertPartLayout {
        file: 0,
        offset_bytes: far,
        stride_bytes: 64,
        len_bytes: 64,
    };
    layout.push_layer(2, &[part]).unwrap();
    let backend = Box::new(PreadBackend::new(files.clone()));
    let config = ExpertStoreConfig::uniform(1, 2, 2);
    let mut store = ExpertStore::new(files.clone(), backend, layout, config).unwrap();
    let lease = store.acquire(0, 0, &[1, 0]).unwrap();
    assert_eq!(
        (lease.part(0, 0), lease.part(1, 0)),
        (&[2; 64][..], &[1; 64][..])
    );

    let mut table = RowTable::new(files, 0, far, 64, 2, 0).unwrap();
    let mut out = [0; 128];
    table.fetch(&[1_u64, 0], &mut out).unwrap();
    assert_eq!((&out[..64], &out[64..]), (&[2; 64][..], &[1; 64][..]));
}
