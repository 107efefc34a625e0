//! Refusals, full disks, and files that appear whole.

use std::fs;
use std::io::{self, Write};

use thalweg_trace::{Error, FileWriter, Logits, TraceFile};

use super::*;

#[test]
fn choices_that_no_reader_would_accept_are_not_written() {
    let shape = tiny_shape().with_weights().with_logits(Logits::FullF16);
    let mut record = RecordBuf::new(&shape).expect("small");
    let row = tiny_row(0, 0);
    let good = LayerChoice::new(&[1, 2])
        .with_weights(&[0.5, 0.5])
        .with_logits(&row);
    let mut refuse = |choice: LayerChoice<'_>| {
        record.start(5);
        record.push_layer(&good).expect("valid");
        let before = record.clone().bytes().map(<[u8]>::len).unwrap_or(0);
        let error = record.push_layer(&choice).expect_err("not acceptable");
        assert_eq!(record.bytes().map(<[u8]>::len).unwrap_or(0), before);
        record.push_layer(&good).expect("the record goes on");
        record.bytes().expect("complete");
        error
    };
    let with_experts = |experts| LayerChoice { experts, ..good };
    assert!(matches!(
        refuse(with_experts(&[1])),
        Error::WrongCount { .. }
    ));
    assert!(matches!(
        refuse(with_experts(&[1, 1])),
        Error::DuplicateExpert { expert: 1, .. }
    ));
    assert!(matches!(
        refuse(with_experts(&[1, 6])),
        Error::ExpertOutOfRange { found: 6, .. }
    ));
    for weights in [&[0.5][..], &[f32::NAN, 0.5], &[1e6, 0.5]] {
        refuse(LayerChoice { weights, ..good });
    }
    for bad in [f32::NAN, f32::INFINITY, 1e6] {
        let mut logits = row.clone();
        logits[3] = bad;
        let error = refuse(LayerChoice {
            logits: &logits,
            ..good
        });
        assert!(matches!(
            error,
            Error::BadValue {
                field: "logit",
                index: 3,
                layer: 1,
                ..
            }
        ));
    }
    refuse(LayerChoice {
        logits: &row[..5],
        ..good
    });
    // A masked expert is no fault.
    let mut masked = row.clone();
    masked[3] = f32::NEG_INFINITY;
    record.start(5);
    let choice = LayerChoice {
        logits: &masked,
        ..good
    };
    record.push_layer(&choice).expect("valid");
    assert!(matches!(
        record.bytes(),
        Err(Error::WrongCount {
            expected: 2,
            found: 1,
            ..
        })
    ));
    record.push_layer(&choice).expect("valid");
    assert!(matches!(
        record.push_layer(&choice),
        Err(Error::WrongCount { found: 3, .. })
    ));
}

#[test]
fn more_or_fewer_records_than_promised_are_refused() {
    let shape = tiny_shape();
    let header = Header {
        shape,
        n_tokens: 1,
        n_docs: 0,
        fingerprint: [0; 32],
    };
    let new = || Writer::new(Vec::new(), &header, &[], "{}").expect("valid");
    let mut record = RecordBuf::new(&shape).expect("small");
    let mut writer = new();
    assert!(
        matches!(writer.push(&record), Err(Error::WrongCount { .. })),
        "unfinished record"
    );
    tiny_record(&mut record, 0);
    writer.push(&record).expect("the one promised");
    assert!(matches!(
        writer.push(&record),
        Err(Error::WrongCount { found: 2, .. })
    ));
    writer.finish().expect("complete");
    assert!(matches!(
        new().finish(),
        Err(Error::WrongCount { found: 0, .. })
    ));
    let other = RecordBuf::new(&shape.with_weights()).expect("small");
    assert!(matches!(new().push(&other), Err(Error::WrongCount { .. })));
    let documents = tiny_documents();
    assert!(
        Writer::new(Vec::new(), &header, &documents, "{}").is_err(),
        "count"
    );
    let header = Header {
        n_docs: 2,
        ..header
    };
    let refused = Writer::new(Vec::new(), &header, &documents, "{}");
    assert!(matches!(
        refused,
        Err(Error::BadDocument { index: 0 | 1, .. })
    ));
}

/// Takes so many bytes, then fails like a full disk.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        if n == 0 && !bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_wherever_it_strikes() {
    let shape = tiny_shape();
    let header = Header {
        shape,
        n_tokens: 3,
        n_docs: 2,
        fingerprint: fingerprint(),
    };
    let run = |room| -> Result<(), Error> {
        let mut writer = Writer::new(Full(room), &header, &tiny_documents(), PROVENANCE)?;
        let mut record = RecordBuf::new(&shape)?;
        for token in 0..3 {
            tiny_record(&mut record, token);
            writer.push(&record)?;
        }
        writer.finish().map(|_| ())
    };
    for room in 0..TINY_NONE.len() {
        let error = run(room).expect_err("no room");
        assert!(matches!(error, Error::Io { .. }), "{room}: {error}");
    }
    run(TINY_NONE.len()).expect("room for all");
}

#[test]
fn a_recording_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("tiny.motr");
    let names = || -> Vec<_> {
        let entries = fs::read_dir(folder.path()).expect("a folder");
        entries.map(|e| e.expect("an entry").file_name()).collect()
    };
    let shape = tiny_shape();
    let start = || {
        let mut writer = FileWriter::create(&target, &shape, fingerprint()).expect("created");
        writer.set_provenance(PROVENANCE);
        let mut record = RecordBuf::new(&shape).expect("small");
        for token in 0..3 {
            match token {
                0 => writer.start_document(1, 0),
                2 => writer.start_document(1, 3),
                _ => {}
            }
            tiny_record(&mut record, token);
            writer.push(&record).expect("written");
        }
        assert_eq!(writer.n_tokens(), 3);
        writer
    };
    fs::write(&target, b"what was there before").expect("written");
    drop(start());
    assert_eq!(names(), ["tiny.motr"]);
    assert_eq!(
        fs::read(&target).expect("still there"),
        b"what was there before"
    );

    let size = start().finish().expect("finished");
    assert_eq!(size, TINY_NONE.len() as u64);
    assert_eq!(names(), ["tiny.motr"]);
    assert_eq!(fs::read(&target).expect("there"), TINY_NONE);
    let file = TraceFile::open(&target).expect("valid");
    assert_eq!(file.trace().n_tokens(), 3);
}

#[test]
fn a_target_that_cannot_be_replaced_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing").join("a.motr");
    let error = FileWriter::create(missing, &tiny_shape(), [0; 32]).expect_err("no folder");
    assert!(matches!(
        error,
        Error::Io {
            path: Some(_),
            action: "creating",
            ..
        }
    ));
    // A folder in the target's place: everything works but the last step.
    let target = folder.path().join("a.motr");
    fs::create_dir(&target).expect("created");
    let writer = FileWriter::create(&target, &tiny_shape(), [0; 32]).expect("created");
    let error = writer.finish().expect_err("a folder is in the way");
    assert!(
        matches!(
            error,
            Error::Io {
                action: "renaming",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let error = TraceFile::open(folder.path().join("b.motr")).expect_err("no file");
    assert!(error.to_string().contains("b.motr"), "{error}");
    let error = TraceFile::open(folder.path()).expect_err("a folder");
    assert!(matches!(error, Error::NotAFile { .. }), "{error}");
}

#[test]
fn what_a_killed_recording_left_is_taken_over_and_a_running_one_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("a.motr");
    let left = folder.path().join(".a.motr.records.partial");
    fs::write(&left, vec![7; 4096]).expect("written");
    fs::write(folder.path().join(".a.motr.partial"), "more").expect("written");
    let record = || -> Result<u64, Error> {
        let mut writer = FileWriter::create(&target, &tiny_shape(), [0; 32])?;
        let mut record = RecordBuf::new(&tiny_shape())?;
        tiny_record(&mut record, 0);
        writer.push(&record)?;
        writer.finish()
    };
    record().expect("taken over");
    assert_eq!(
        TraceFile::open(&target).expect("valid").trace().n_tokens(),
        1
    );
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let running = FileWriter::create(&target, &tiny_shape(), [0; 32]).expect("made");
    let error = record().expect_err("another one is under way");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(running);
    record().expect("free again");
    // A link under the temporary name is not followed.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&target, &left).expect("linked");
        let error = record().expect_err("a link is in the way");
        assert!(matches!(error, Error::NotAFile { .. }), "{error}");
        TraceFile::open(&target).expect("as it was");
    }
}

#[test]
fn empty_documents_leave_no_entry_and_short_ones_are_all_prompt() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("a.motr");
    let shape = tiny_shape();
    let mut writer = FileWriter::create(&target, &shape, [0; 32]).expect("created");
    let mut record = RecordBuf::new(&shape).expect("small");
    tiny_record(&mut record, 0);
    writer.start_document(9, 1);
    writer.start_document(5, 2);
    writer.push(&record).expect("written");
    writer.push(&record).expect("written");
    writer.start_document(1, 3);
    writer.push(&record).expect("written");
    writer.start_document(1, 4);
    writer.finish().expect("finished");
    let file = TraceFile::open(&target).expect("valid");
    let documents: Vec<_> = file.trace().documents().collect();
    let plain: Vec<_> = documents
        .iter()
        .map(|d| (d.first_token, d.n_prompt_tokens, d.domain))
        .collect();
    assert_eq!(plain, [(0, 2, 2), (2, 1, 3)]);
    // No token at all is a trace, too.
    let writer = FileWriter::create(&target, &shape, [0; 32]).expect("created");
    writer.finish().expect("finished");
    assert_eq!(
        TraceFile::open(&target).expect("valid").trace().n_tokens(),
        0
    );
}
