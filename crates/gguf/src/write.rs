//! Writes GGUF version 3. Owns: layout of a new file, the order and size of the data, replacing a
//! file as a whole. Does not own: quantization, or which keys a model needs.
//! Memory: the header once while it is encoded; of tensor data a write buffer.
//!
//! Invariants: 1. what is written, [`Header::read`](crate::Header::read) accepts, and so does
//! llama.cpp's reader: no gaps, listed order, padding after every tensor. 2. A target path holds
//! either its old contents or all of the new ones. 3. A writer dropped early leaves no file.
//! Cost: one pass; `Writer::finish` waits for the disk.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::metadata::Metadata;
use crate::platform;
use crate::read::{MAGIC, alignment};
use crate::source::MAX_HEADER_BYTES;
use crate::tensor::{TensorInfo, TensorSpec, length};
use crate::value::{Array, Value};

/// Writes a GGUF file that appears under its name only when it is complete.
///
/// Tensors are declared first; then their data comes in the declared order, in pieces of any
/// size. Until [`finish`](Self::finish) everything goes to a temporary file in the same folder,
/// `.NAME.PID-N.tmp`. Dropping the writer removes it; only a process that is killed leaves it
/// behind, and the target untouched.
///
/// ```
/// use thalweg_gguf::{Gguf, Metadata, TensorSpec, TensorType, Writer};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("small.gguf");
/// let mut metadata = Metadata::new();
/// metadata.insert("general.architecture", "demo")?;
/// let specs = [TensorSpec::new("weight", TensorType::F32, &[4, 2])?];
///
/// let mut writer = Writer::create(&path, &metadata, &specs)?;
/// writer.write_chunk("weight", &[0; 12])?;
/// writer.write_chunk("weight", &[1; 20])?;
/// writer.finish()?;
///
/// let model = Gguf::open(&path)?;
/// let weight = model.tensor("weight").unwrap();
/// assert_eq!(model.read_tensor(weight)?[11..13], [0, 1]);
/// # Ok::<(), thalweg_gguf::Error>(())
/// ```
#[derive(Debug)]
pub struct Writer {
    // Declared, and so dropped, first: some systems don't remove an open file.
    stream: StreamWriter<BufWriter<Box<dyn Sink>>>,
    temporary: Temporary,
    target: PathBuf,
}

impl Writer {
    /// Starts a file: writes the header to a temporary file beside `path`.
    ///
    /// `general.alignment` in the metadata sets the alignment.
    ///
    /// # Errors
    /// [`Error::InFile`] around [`Error::System`] or [`Error::Write`] if the disk refuses, and
    /// around those of [`StreamWriter::new`].
    pub fn create(
        path: impl AsRef<Path>,
        metadata: &Metadata,
        tensors: &[TensorSpec],
    ) -> Result<Self, Error> {
        Self::create_through(path.as_ref(), metadata, tensors, |file| Box::new(file))
    }

    /// Appends to the data of a tensor: of the first one that is not complete yet.
    ///
    /// # Errors
    /// [`Error::InFile`] around those of [`StreamWriter::write_chunk`].
    pub fn write_chunk(&mut self, name: &str, chunk: &[u8]) -> Result<(), Error> {
        self.stream
            .write_chunk(name, chunk)
            .map_err(|e| e.in_file(&self.target))
    }

    /// Writes the whole data of the next tensor.
    ///
    /// # Errors
    /// [`Error::InFile`] around those of [`StreamWriter::write_tensor`].
    pub fn write_tensor(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        self.stream
            .write_tensor(name, data)
            .map_err(|e| e.in_file(&self.target))
    }

    /// The directory of the file being written, with final offsets.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        self.stream.tensors()
    }

    /// Completes the file: syncs it, gives it its name, syncs the folder.
    ///
    /// # Errors
    /// [`Error::InFile`] around those of [`StreamWriter::finish`], and around [`Error::System`].
    /// The target is then untouched, except if only the folder could not be synced.
    pub fn finish(self) -> Result<(), Error> {
        let Self {
            stream,
            temporary,
            target,
        } = self;
        commit(stream, temporary, &target).map_err(|e| e.in_file(&target))
    }

    fn create_through(
        path: &Path,
        metadata: &Metadata,
        tensors: &[TensorSpec],
        sink: impl FnOnce(File) -> Box<dyn Sink>,
    ) -> Result<Self, Error> {
        let in_file = |error: Error| error.in_file(path);
        let (temporary, file) = Temporary::create(path).map_err(in_file)?;
        let sink = BufWriter::with_capacity(256 << 10, sink(file));
        let stream = StreamWriter::new(sink, metadata, tensors).map_err(in_file)?;
        Ok(Self {
            stream,
            temporary,
            target: path.to_owned(),
        })
    }
}

/// Writes a GGUF file to any [`io::Write`]: memory, a pipe, a checksum.
///
/// ```
/// use thalweg_gguf::{Header, Metadata, StreamWriter, TensorSpec, TensorType};
///
/// let specs = [TensorSpec::new("bias", TensorType::F32, &[2])?];
/// let mut writer = StreamWriter::new(Vec::new(), &Metadata::new(), &specs)?;
/// writer.write_tensor("bias", &[0; 8])?;
/// let bytes = writer.finish()?;
///
/// let header = Header::parse(&bytes, bytes.len() as u64)?;
/// assert_eq!(header.tensors()[0].name, "bias");
/// # Ok::<(), thalweg_gguf::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamWriter<W: Write> {
    sink: W,
    tensors: Vec<TensorInfo>,
    alignment_bytes: u64,
    position: u64,
    /// The first tensor whose data is not complete.
    current: usize,
    failed: bool,
}

impl<W: Write> StreamWriter<W> {
    /// Lays out the file and writes its header.
    ///
    /// # Errors
    /// [`Error::DuplicateTensor`]; [`Error::BadAlignment`] or [`Error::WrongType`] for
    /// `general.alignment`; [`Error::HeaderTooLarge`] if no reader of this crate would take it
    /// back; [`Error::InTensor`] around [`Error::ShapeTooLarge`] if the file's length exceeds
    /// 2^63; [`Error::Write`].
    pub fn new(sink: W, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Self, Error> {
        let alignment_bytes = u64::from(alignment(metadata)?);
        let mut names = HashSet::with_capacity(tensors.len());
        if let Some(twice) = tensors.iter().find(|tensor| !names.insert(tensor.name())) {
            return Err(Error::DuplicateTensor {
                name: twice.name().to_owned(),
            });
        }
        let mut placed = lay_out(tensors, alignment_bytes)?;
        let header = encode_header(metadata, &placed, alignment_bytes)?;
        let data_start_bytes = len_bytes(&header);
        for tensor in &mut placed {
            tensor.offset_bytes += data_start_bytes;
        }
        let mut writer = Self {
            sink,
            tensors: placed,
            alignment_bytes,
            position: 0,
            current: 0,
            failed: false,
        };
        writer.emit(&header)?;
        Ok(writer)
    }

    /// Appends to the data of a tensor: of the first one that is not complete yet.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] if another tensor is due; [`Error::DataLength`] if the chunk is more
    /// than is missing, and nothing of it is written; [`Error::Write`];
    /// [`Error::WriterFailed`] after that.
    pub fn write_chunk(&mut self, name: &str, chunk: &[u8]) -> Result<(), Error> {
        self.check_usable()?;
        let due = self.due(name)?;
        let (expected_bytes, end) = (due.size_bytes, due.end_bytes());
        let found_bytes = (self.position - due.offset_bytes).saturating_add(len_bytes(chunk));
        if found_bytes > expected_bytes {
            return Err(Error::DataLength {
                expected_bytes,
                found_bytes,
            }
            .in_tensor(name));
        }
        self.emit(chunk)?;
        if self.position == end {
            self.current += 1;
            self.pad()?;
        }
        Ok(())
    }

    /// Writes the whole data of the next tensor.
    ///
    /// # Errors
    /// Those of [`write_chunk`](Self::write_chunk); [`Error::DataLength`] also for too few bytes.
    pub fn write_tensor(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        self.check_usable()?;
        let due = self.due(name)?;
        let (expected_bytes, found_bytes) = (due.size_bytes, len_bytes(data));
        if self.position != due.offset_bytes || found_bytes != expected_bytes {
            let found_bytes = (self.position - due.offset_bytes).saturating_add(found_bytes);
            return Err(Error::DataLength {
                expected_bytes,
                found_bytes,
            }
            .in_tensor(name));
        }
        self.write_chunk(name, data)
    }

    /// The directory of the file being written, with final offsets.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Checks that all data has come, flushes, and gives the sink back.
    ///
    /// # Errors
    /// [`Error::InTensor`] around [`Error::DataLength`] for the first incomplete tensor;
    /// [`Error::Write`]; [`Error::WriterFailed`] if an earlier write failed.
    pub fn finish(mut self) -> Result<W, Error> {
        self.check_usable()?;
        if let Some(due) = self.tensors.get(self.current) {
            let expected_bytes = due.size_bytes;
            let found_bytes = self.position - due.offset_bytes;
            return Err(Error::DataLength {
                expected_bytes,
                found_bytes,
            }
            .in_tensor(&due.name));
        }
        let offset_bytes = self.position;
        self.sink.flush().map_err(|cause| Error::Write {
            offset_bytes,
            cause,
        })?;
        Ok(self.sink)
    }

    fn check_usable(&self) -> Result<(), Error> {
        if self.failed {
            Err(Error::WriterFailed)
        } else {
            Ok(())
        }
    }

    fn due(&self, name: &str) -> Result<&TensorInfo, Error> {
        let due = self.tensors.get(self.current);
        due.filter(|due| due.name == name)
            .ok_or_else(|| Error::OutOfTurn {
                expected: due.map(|due| due.name.clone()),
                found: name.to_owned(),
            })
    }

    fn emit(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let offset_bytes = self.position;
        self.sink.write_all(bytes).map_err(|cause| {
            self.failed = true;
            Error::Write {
                offset_bytes,
                cause,
            }
        })?;
        self.position += len_bytes(bytes);
        Ok(())
    }

    fn pad(&mut self) -> Result<(), Error> {
        let mut left = self.position.next_multiple_of(self.alignment_bytes) - self.position;
        while left > 0 {
            let n = left.min(len_bytes(&ZEROS));
            self.emit(&ZEROS[..usize::try_from(n).unwrap_or(ZEROS.len())])?;
            left -= n;
        }
        Ok(())
    }
}

static ZEROS: [u8; 4096] = [0; 4096];

/// Places tensors one after the other, from the start of the data section.
fn lay_out(tensors: &[TensorSpec], alignment_bytes: u64) -> Result<Vec<TensorInfo>, Error> {
    let mut next = 0_u64;
    let mut placed = Vec::with_capacity(tensors.len());
    for spec in tensors {
        placed.push(spec.clone().place(next));
        next = next
            .checked_add(spec.size_bytes())
            .and_then(|end| end.checked_next_multiple_of(alignment_bytes))
            // Leaves room for the header, so that no sum below can overflow.
            .filter(|&end| end <= i64::MAX.cast_unsigned() - 2 * MAX_HEADER_BYTES)
            .ok_or_else(|| {
                Error::ShapeTooLarge {
                    ne: spec.shape().to_vec(),
                }
                .in_tensor(spec.name())
            })?;
    }
    Ok(placed)
}

fn encode_header(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    alignment_bytes: u64,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(3_u32.to_le_bytes());
    put_len(&mut out, tensors.len());
    put_len(&mut out, metadata.len());
    for (key, value) in metadata.iter() {
        put_str(&mut out, key);
        out.extend(value.value_type().id().to_le_bytes());
        put_value(&mut out, value);
    }
    for tensor in tensors {
        put_str(&mut out, &tensor.name);
        let shape = tensor.shape();
        let n_dims = u32::try_from(shape.len()).expect("a shape has 1 to 4 dimensions");
        out.extend(n_dims.to_le_bytes());
        out.extend(shape.iter().flat_map(|n| n.to_le_bytes()));
        out.extend(tensor.ty.id().to_le_bytes());
        out.extend(tensor.offset_bytes.to_le_bytes());
    }
    if len_bytes(&out) > MAX_HEADER_BYTES {
        return Err(Error::HeaderTooLarge {
            field: "tensor directory".to_owned(),
            offset_bytes: len_bytes(&out),
            limit_bytes: MAX_HEADER_BYTES,
        });
    }
    while !len_bytes(&out).is_multiple_of(alignment_bytes) {
        out.push(0);
    }
    Ok(out)
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(text) => put_str(out, text),
        Value::Array(array) => {
            out.extend(array.element_type().id().to_le_bytes());
            put_len(out, array.len());
            put_elements(out, array);
        }
    }
}

fn put_elements(out: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(items) => out.extend(items),
        Array::I8(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::U64(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(items) => out.extend(items.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(items) => out.extend(items.iter().map(|&v| u8::from(v))),
        Array::String(items) => items.iter().for_each(|text| put_str(out, text)),
    }
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend(length(text).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend(
        u64::try_from(len)
            .expect("a length in memory fits u64")
            .to_le_bytes(),
    );
}

fn len_bytes(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length in memory fits u64")
}

/// What a [`Writer`] writes to: a file, or a failing stand-in for one in tests.
trait Sink: Write + Send + Sync + std::fmt::Debug {
    /// Waits until the data is on the disk.
    fn sync(&self) -> io::Result<()>;
}

impl Sink for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// A file that is removed on drop, unless it was renamed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    keep: bool,
}

impl Temporary {
    /// Creates a new file beside `target`.
    fn create(target: &Path) -> Result<(Self, File), Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let create = |cause| Error::System {
            operation: "create",
            cause,
        };
        let Some(target_name) = target.file_name() else {
            return Err(create(io::ErrorKind::InvalidFilename.into()));
        };
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(".");
        name.push(target_name);
        name.push(format!(".{}-{serial}.tmp", std::process::id()));
        let path = target.with_file_name(name);
        let file = File::create_new(&path).map_err(create)?;
        Ok((Self { path, keep: false }, file))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.keep {
            // Nobody is left to tell; the name says what the file is.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn commit(
    stream: StreamWriter<BufWriter<Box<dyn Sink>>>,
    mut temporary: Temporary,
    target: &Path,
) -> Result<(), Error> {
    let system = |operation| move |cause| Error::System { operation, cause };
    let offset_bytes = stream.position;
    let buffer = stream.finish()?;
    let file = buffer.into_inner().map_err(|e| Error::Write {
        offset_bytes,
        cause: e.into_error(),
    })?;
    file.sync().map_err(system("sync"))?;
    drop(file);
    fs::rename(&temporary.path, target).map_err(system("rename"))?;
    temporary.keep = true;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    platform::sync_folder(folder).map_err(system("sync the folder"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorType;

    /// A real file on a disk that is full after so many bytes, or fails to sync.
    #[derive(Debug)]
    struct BadDisk {
        file: File,
        left: usize,
        syncs: bool,
    }

    impl Write for BadDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.left);
            if n == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.left -= n;
            self.file.write(&bytes[..n])
        }

        fn flush(&mut self) -> io::Result<()> {
            self.file.flush()
        }
    }

    impl Sink for BadDisk {
        fn sync(&self) -> io::Result<()> {
            if self.syncs {
                self.file.sync_all()
            } else {
                Err(io::ErrorKind::StorageFull.into())
            }
        }
    }

    fn write_to(path: &Path, left: usize, syncs: bool) -> Result<(), Error> {
        let specs = [TensorSpec::new("t", TensorType::I8, &[1 << 20]).unwrap()];
        let disk = |file| Box::new(BadDisk { file, left, syncs }) as Box<dyn Sink>;
        let mut writer = Writer::create_through(path, &Metadata::new(), &specs, disk)?;
        writer.write_tensor("t", &[1; 1 << 20])?;
        writer.finish()
    }

    #[test]
    fn full_disk_leaves_no_file_and_keeps_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, "old").unwrap();
        let enough = 2 << 20;
        for (left, syncs) in [(0, true), (100, true), (1 << 19, true), (enough, false)] {
            let error = write_to(&path, left, syncs).unwrap_err();
            let (Error::Write { cause, .. } | Error::System { cause, .. }) = error.root() else {
                panic!("{error}");
            };
            assert_eq!(cause.kind(), io::ErrorKind::StorageFull, "{error}");
            assert_eq!(
                fs::read_dir(folder.path()).unwrap().count(),
                1,
                "only the old file"
            );
            assert_eq!(fs::read(&path).unwrap(), b"old");
        }
        write_to(&path, enough, true).unwrap();
        assert!(fs::metadata(&path).unwrap().len() > 1 << 20);
    }
}
