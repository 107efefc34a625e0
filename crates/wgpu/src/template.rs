//! WGSL with repetitions: what a loop over a constant would be, written out, since arrays in
//! registers and unrolled loops are nothing that every driver's compiler finds by itself.
//!
//! Owns two directives, each a line of its own: `//repeat k NAME`, after which everything up to the
//! matching `//end` comes NAME times with `{k}` replaced by 0, 1, ... They nest. Memory: the text.

/// The text without its directives; `constants` gives the value of each NAME.
pub(crate) fn expand(text: &str, constants: &[(&str, u32)]) -> String {
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut out = String::new();
    write(&lines, constants, &mut out);
    out
}

fn write(lines: &[String], constants: &[(&str, u32)], out: &mut String) {
    let mut i = 0;
    while let Some(line) = lines.get(i) {
        let Some(directive) = line.trim().strip_prefix("//repeat ") else {
            out.push_str(line);
            out.push('\n');
            i += 1;
            continue;
        };
        let (variable, name) = directive.split_once(' ').expect("a variable and a name");
        let found = constants.iter().find(|(known, _)| *known == name);
        let times = found.expect("a constant of the kernel").1;
        let body = &lines[i + 1..end(lines, i)];
        for n in 0..times {
            let replace = |line: &String| line.replace(&format!("{{{variable}}}"), &n.to_string());
            let body: Vec<String> = body.iter().map(replace).collect();
            write(&body, constants, out);
        }
        i += body.len() + 2;
    }
}

/// The line that ends what begins at line `start`.
fn end(lines: &[String], start: usize) -> usize {
    let mut depth = 0_usize;
    for (i, line) in lines.iter().enumerate().skip(start) {
        let line = line.trim();
        depth += usize::from(line.starts_with("//repeat "));
        depth -= usize::from(line == "//end");
        if depth == 0 {
            return i;
        }
    }
    panic!("no //end for line {start} of a kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_come_as_often_as_their_constant_says() {
        let text = "a\n//repeat k ROWS\nb{k}\n//repeat j FEW\n  c{k}{j}\n//end\n//end\n//repeat k NONE\nd\n//end\ne";
        let constants = [("ROWS", 2), ("FEW", 2), ("NONE", 0)];
        let expected = "a\nb0\n  c00\n  c01\nb1\n  c10\n  c11\ne\n";
        assert_eq!(expand(text, &constants), expected);
    }
}
