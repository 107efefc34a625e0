//! Writes the default small model to the path given: input of `tools/make_small_golden.py`.

use thalweg_testkit::SmallModel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: write_small FILE.gguf")?;
    SmallModel::default().write(path)?;
    Ok(())
}
