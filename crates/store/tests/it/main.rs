//! The store as its users see it: files on disk, leases, rows, and everything that goes wrong.

mod ahead;
mod backends;
mod experts;
mod faults;
mod files;
mod fixture;
mod leases;
mod mixed;
mod operations;
mod recorder;
mod rows;
mod stream;
mod warm;
