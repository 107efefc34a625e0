//! Writing: `Writer` to any `Write`, `FileWriter` to a path.
//!
//! Owns the order of the parts and the checksum. The format names counts and documents before the
//! records, so `Writer` must be told them, while `FileWriter` spools the records beside its target
//! and puts the file together at the end. Invariants: 1. the target path is untouched until the
//! whole file is on disk, then replaced in one step; 2. temporary files vanish with the writer, and
//! those of a killed process with the next one.
//! Cost: `Writer` writes each byte once, `FileWriter` twice.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::crc::Crc32c;
use crate::header::TRAILER_MAGIC;
use crate::read::check_documents;
use crate::temp::TempPath;
use crate::{Document, Error, Header, RecordBuf, Shape};

/// Bytes moved at a time from the spool to the file.
const COPY_BYTES: usize = 1 << 18;

/// Writes a trace whose token count and documents are known.
///
/// ```
/// use thalweg_trace::{Header, LayerChoice, RecordBuf, Shape, Trace, Writer};
/// let shape = Shape::new(1, 8, 2);
/// let header = Header { shape, n_tokens: 1, n_docs: 0, fingerprint: [0; 32] };
/// let mut file = Vec::new();
/// let mut writer = Writer::new(&mut file, &header, &[], "{}")?;
/// let mut record = RecordBuf::new(&shape)?;
/// record.start(42);
/// record.push_layer(&LayerChoice::new(&[5, 3]))?;
/// writer.push(&record)?;
/// writer.finish()?;
/// assert_eq!(Trace::parse(&file)?.token(0).unwrap().id(), 42);
/// # Ok::<(), thalweg_trace::Error>(())
/// ```
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    crc: Crc32c,
    header: Header,
    n_written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes header, documents and provenance.
    ///
    /// # Errors
    /// What [`Shape::check`] finds, [`Error::BadDocument`], [`Error::WrongCount`] when
    /// `header.n_docs` is not the number of documents, [`Error::OutOfRange`] for 4 GiB of
    /// provenance, [`Error::Io`].
    pub fn new(
        out: W,
        header: &Header,
        documents: &[Document],
        provenance: &str,
    ) -> Result<Self, Error> {
        header.shape.check()?;
        if u64::from(header.n_docs) != documents.len() as u64 {
            return Err(Error::WrongCount {
                what: "documents",
                expected: u64::from(header.n_docs),
                found: documents.len() as u64,
            });
        }
        check_documents(documents.iter().copied(), header.n_tokens)?;
        let provenance_bytes = u32::try_from(provenance.len()).map_err(|_| Error::OutOfRange {
            field: "provenance bytes",
            found: provenance.len() as u64,
            min: 0,
            max: u64::from(u32::MAX),
        })?;
        let mut writer = Self {
            out,
            crc: Crc32c::new(),
            header: *header,
            n_written: 0,
        };
        writer.put(&header.to_bytes())?;
        for document in documents {
            writer.put(&document.to_bytes())?;
        }
        writer.put(&provenance_bytes.to_le_bytes())?;
        writer.put(provenance.as_bytes())?;
        Ok(writer)
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for a record of another shape, an unfinished one, or one too many;
    /// [`Error::Io`].
    pub fn push(&mut self, record: &RecordBuf) -> Result<(), Error> {
        check_shape(record, &self.header.shape)?;
        self.push_bytes(record.bytes()?)
    }

    /// Writes the trailer and flushes; returns the output.
    ///
    /// # Errors
    /// [`Error::WrongCount`] when there are fewer records than the header says; [`Error::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        if self.n_written != self.header.n_tokens {
            return Err(self.wrong_count(self.n_written));
        }
        let crc = self.crc.value();
        self.put(&crc.to_le_bytes())?;
        self.put(&TRAILER_MAGIC)?;
        self.out
            .flush()
            .map_err(|e| Error::io("writing the trace", e))?;
        Ok(self.out)
    }

    /// Appends records from a spool that holds nothing else.
    fn copy_records(
        &mut self,
        spool: &mut File,
        n_records: u64,
        path: &TempPath,
    ) -> Result<(), Error> {
        let mut buffer = vec![0; COPY_BYTES];
        let mut n_bytes = 0u64;
        loop {
            let n = match spool.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(path.error("reading", e)),
            };
            self.put(&buffer[..n])?;
            n_bytes += n as u64;
        }
        let expected = n_records.saturating_mul(self.header.shape.record_bytes());
        if n_bytes != expected {
            return Err(Error::WrongCount {
                what: "bytes of records in the spool",
                expected,
                found: n_bytes,
            });
        }
        self.n_written += n_records;
        Ok(())
    }

    /// Appends one whole record.
    fn push_bytes(&mut self, record: &[u8]) -> Result<(), Error> {
        if self.n_written == self.header.n_tokens {
            return Err(self.wrong_count(self.n_written + 1));
        }
        self.put(record)?;
        self.n_written += 1;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.crc.update(bytes);
        self.out
            .write_all(bytes)
            .map_err(|e| Error::io("writing the trace", e))
    }

    const fn wrong_count(&self, found: u64) -> Error {
        Error::WrongCount {
            what: "records",
            expected: self.header.n_tokens,
            found,
        }
    }
}

/// Records a trace to a path, without knowing beforehand how long it will be.
///
/// Two temporary files lie beside the target meanwhile, `.NAME.records.partial` and, at the end,
/// `.NAME.partial`. Dropped without [`finish`](Self::finish), it leaves nothing; a process that is
/// killed leaves them, and the next recording to the same target takes them over.
#[derive(Debug)]
pub struct FileWriter {
    target: PathBuf,
    // Before the handle, so that its name goes while it is still locked.
    spool_path: TempPath,
    spool: BufWriter<File>,
    shape: Shape,
    fingerprint: [u8; 32],
    documents: Vec<Document>,
    provenance: String,
    n_tokens: u64,
}

impl FileWriter {
    /// Starts recording. Nothing exists at `target` until [`finish`](Self::finish); what exists
    /// there now stays until then.
    ///
    /// # Errors
    /// What [`Shape::check`] finds; [`Error::Io`]; [`Error::Busy`] while another process records to
    /// the same target.
    pub fn create(
        target: impl Into<PathBuf>,
        shape: &Shape,
        fingerprint: [u8; 32],
    ) -> Result<Self, Error> {
        shape.check()?;
        let target = target.into();
        let (spool, spool_path) = TempPath::create(&target, ".records.partial")?;
        Ok(Self {
            target,
            spool_path,
            spool: BufWriter::new(spool),
            shape: *shape,
            fingerprint,
            documents: Vec::new(),
            provenance: String::from("{}"),
            n_tokens: 0,
        })
    }

    /// The next token starts a document. A document without tokens leaves no entry.
    pub fn start_document(&mut self, n_prompt_tokens: u32, domain: u32) {
        self.drop_empty_document();
        self.documents.push(Document {
            first_token: self.n_tokens,
            n_prompt_tokens,
            domain,
        });
    }

    /// Sets the provenance, by convention a JSON object with the names of the domains. Default
    /// `{}`.
    pub fn set_provenance(&mut self, json: impl Into<String>) {
        self.provenance = json.into();
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for a record of another shape or an unfinished one; [`Error::Io`].
    pub fn push(&mut self, record: &RecordBuf) -> Result<(), Error> {
        check_shape(record, &self.shape)?;
        self.spool
            .write_all(record.bytes()?)
            .map_err(|e| self.spool_path.error("writing", e))?;
        self.n_tokens += 1;
        Ok(())
    }

    /// Records so far.
    #[must_use]
    pub const fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Puts the file together, writes it to disk and moves it to the target; returns its size.
    ///
    /// A document that was cut short counts as all prompt.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Busy`]; the target is as it was then, and the temporary files are
    /// gone.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.drop_empty_document();
        self.clamp_prompts();
        let header = Header {
            shape: self.shape,
            n_tokens: self.n_tokens,
            n_docs: u32::try_from(self.documents.len()).map_err(|_| Error::OutOfRange {
                field: "documents",
                found: self.documents.len() as u64,
                min: 0,
                max: u64::from(u32::MAX),
            })?,
            fingerprint: self.fingerprint,
        };
        let mut spool = self
            .spool
            .into_inner()
            .map_err(|e| self.spool_path.error("writing", e.into_error()))?;
        spool
            .seek(SeekFrom::Start(0))
            .map_err(|e| self.spool_path.error("reading", e))?;
        let (file, mut path) = TempPath::create(&self.target, ".partial")?;
        let out = BufWriter::new(file);
        let mut writer = Writer::new(out, &header, &self.documents, &self.provenance)?;
        writer.copy_records(&mut spool, self.n_tokens, &self.spool_path)?;
        let file = writer
            .finish()?
            .into_inner()
            .map_err(|e| path.error("writing", e.into_error()))?;
        file.sync_all().map_err(|e| path.error("flushing", e))?;
        let size = file.metadata().map_err(|e| path.error("measuring", e))?;
        path.rename_to(&self.target)?;
        sync_folder(&self.target)?;
        Ok(size.len())
    }

    fn drop_empty_document(&mut self) {
        if self
            .documents
            .last()
            .is_some_and(|d| d.first_token == self.n_tokens)
        {
            self.documents.pop();
        }
    }

    fn clamp_prompts(&mut self) {
        let mut end = self.n_tokens;
        for document in self.documents.iter_mut().rev() {
            let len = u32::try_from(end - document.first_token).unwrap_or(u32::MAX);
            document.n_prompt_tokens = document.n_prompt_tokens.min(len);
            end = document.first_token;
        }
    }
}

/// Makes the rename itself durable.
#[cfg(unix)]
fn sync_folder(target: &Path) -> Result<(), Error> {
    let folder = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| Error::Io {
            path: Some(folder.to_path_buf()),
            action: "flushing",
            source,
        })
}

/// Folders cannot be opened as files elsewhere.
#[cfg(not(unix))]
fn sync_folder(_target: &Path) -> Result<(), Error> {
    Ok(())
}

fn check_shape(record: &RecordBuf, shape: &Shape) -> Result<(), Error> {
    if record.shape() == shape {
        return Ok(());
    }
    Err(Error::WrongCount {
        what: "bytes in a record of another shape",
        expected: shape.record_bytes(),
        found: record.shape().record_bytes(),
    })
}
