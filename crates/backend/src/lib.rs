//! The compute contract of Thalweg and its CPU reference
