//! Control groups that bound a run's memory.
//!
//! Owns one group per run, from its creation to its removal. Does not start processes: a child
//! joins the group by itself, before it touches the model. The limit is the kernel's and holds for
//! everything the kernel charges: anonymous memory, page cache of the files that are read or
//! mapped, page tables. Versions 1 and 2 of the interface are spoken.
//!
//! Invariants
//! 1. A group that could not be limited is not handed out.
//! 2. Dropping a group removes its folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The kernel rounds limits down to pages; a page is at most this large.
const LARGEST_PAGE_BYTES: u64 = 64 << 10;

/// Versions of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }

    fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }
}

/// A folder in which groups can be made.
#[derive(Debug, Clone)]
pub(crate) struct Parent {
    path: PathBuf,
    pub(crate) version: Version,
}

impl Parent {
    /// The folder that was asked for, or the top of the mounted hierarchy with the memory
    /// controller.
    pub(crate) fn find(asked: Option<&Path>) -> Result<Self> {
        let parent = match asked {
            Some(path) => Self::at(path)?,
            None => {
                let mounts = fs::read_to_string("/proc/self/mounts")
                    .context("cannot limit memory: no list of mounts")?;
                Self::from_mounts(&mounts, |dir| {
                    fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default()
                })
                .context(
                    "cannot limit memory: no control group hierarchy with the memory controller \
                     is mounted",
                )?
            }
        };
        Ok(parent)
    }

    fn at(path: &Path) -> Result<Self> {
        let version = if path.join("memory.usage_in_bytes").is_file() {
            Version::V1
        } else if path.join("cgroup.controllers").is_file() {
            Version::V2
        } else {
            let path = path.display();
            bail!("cannot limit memory: {path} is not a control group of the memory controller");
        };
        let path = path.to_owned();
        Ok(Self { path, version })
    }

    /// Version 1 first: where both are mounted, a controller belongs to one of them.
    fn from_mounts(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<Self> {
        let mut v2 = None;
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, dir, kind, options, ..] = fields[..] else {
                continue;
            };
            let path = PathBuf::from(dir);
            if kind == "cgroup" && options.split(',').any(|o| o == "memory") {
                let version = Version::V1;
                return Some(Self { path, version });
            }
            let has_memory = || controllers(&path).split_whitespace().any(|c| c == "memory");
            if kind == "cgroup2" && has_memory() {
                let version = Version::V2;
                v2 = Some(Self { path, version });
            }
        }
        v2
    }
}

/// A control group with a memory limit.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    version: Version,
}

impl Group {
    /// Makes a group whose processes together get `limit_bytes`, swap included.
    pub(crate) fn create(parent: &Parent, limit_bytes: u64) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let version = parent.version;
        if version == Version::V2 {
            let path = parent.path.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&path).unwrap_or_default();
            if !enabled.split_whitespace().any(|c| c == "memory") {
                write(&path, "+memory")?;
            }
        }
        let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.path.join(format!("thalweg-peer-{pid}-{n}"));
        fs::create_dir(&path).with_context(|| {
            let path = path.display();
            format!("cannot limit memory: no control group can be made at {path} (try as root)")
        })?;
        let group = Self { path, version };
        let limit = limit_bytes.to_string();
        group.write(version.limit_file(), &limit)?;
        // Absent where the kernel doesn't account for swap; then there's none to allow.
        match version {
            Version::V1 => group.write_if_there("memory.memsw.limit_in_bytes", &limit)?,
            Version::V2 => group.write_if_there("memory.swap.max", "0")?,
        }
        let found = group.read(version.limit_file())?;
        let found: u64 = found.parse().with_context(|| {
            let path = group.path.display();
            format!("cannot limit memory: the limit of {path} reads {found:?}")
        })?;
        ensure!(
            found <= limit_bytes && found + LARGEST_PAGE_BYTES > limit_bytes,
            "cannot limit memory: {} was given {limit_bytes} bytes and holds {found}",
            group.path.display()
        );
        Ok(group)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The most that was charged at any time, as far as the kernel tells.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        self.read(name).ok()?.parse().ok()
    }

    /// How often the kernel killed a process to hold the limit.
    pub(crate) fn oom_kills(&self) -> u64 {
        let name = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = self.read(name).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.path.join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        write(&self.path.join(name), text)
    }

    fn write_if_there(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        if path.exists() {
            write(&path, text)
        } else {
            Ok(())
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was just reaped may count for a moment longer.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("warning: control group {} is left", self.path.display());
    }
}

/// Moves this process into the group at `path`, and makes sure that it is there.
pub(crate) fn join(path: &Path) -> Result<()> {
    write(&path.join("cgroup.procs"), "0")?;
    let own = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let is_in = !name.is_empty() && own.lines().any(|l| l.ends_with(&format!("/{name}")));
    ensure!(is_in, "cannot limit memory: not in {}", path.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .with_context(|| format!("cannot limit memory: cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";

    #[test]
    fn the_hierarchy_with_the_memory_controller_is_found() {
        let found = Parent::from_mounts(MIXED, |_| "hugetlb\n".to_owned()).expect("found");
        assert_eq!(found.path, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(found.version, Version::V1);

        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = Parent::from_mounts(unified, |dir| {
            assert_eq!(dir, Path::new("/sys/fs/cgroup"));
            "cpu io memory pids\n".to_owned()
        });
        assert_eq!(found.expect("found").version, Version::V2);
        assert!(Parent::from_mounts(unified, |_| "cpu io\n".to_owned()).is_none());
    }

    #[test]
    fn an_ordinary_folder_is_refused() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let error = Parent::find(Some(dir.path())).expect_err("no control group");
        assert!(
            error.to_string().starts_with("cannot limit memory"),
            "{error}"
        );
    }
}
