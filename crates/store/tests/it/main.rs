//! The store as its users see it: files on disk, leases, rows, and everything that goes wrong.

mod backends;
mod experts;
mod faults;
mod files;
mod fixture;
mod operations;
mod rows;
