// SPDX-License-Identifier: Apache-2.0
//! The file of `--losses`: a line for each epoch, with every bit of its loss, so that two runs can be compared exactly.
use std::fs::File;
use std::io::Write;

pub struct Losses {
    file: Option<(String, File)>,
}

impl Losses {
    pub fn create(path: Option<&str>) -> Result<Self, String> {
        let create = |path: &str| File::create(path).map(|file| (path.to_string(), file));
        let file = path.map(|path| create(path).map_err(|e| format!("{}: {}", path, e)));
        Ok(Losses { file: file.transpose()? })
    }

    pub fn write(&mut self, epoch: i64, loss: f64) -> Result<(), String> {
        match &mut self.file {
            Some((path, file)) => {
                writeln!(file, "{} {}", epoch, hexadecimal(loss)).map_err(|e| format!("{}: {}", path, e))
            }
            None => Ok(()),
        }
    }
}

/// As C's "%a" writes a finite number that isn't subnormal.
fn hexadecimal(number: f64) -> String {
    let bits = number.to_bits();
    let sign = if number.is_sign_negative() { "-" } else { "" };
    if number == 0.0 {
        return format!("{}0x0p+0", sign);
    }
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let digits = format!("{:013x}", bits & ((1 << 52) - 1));
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("{}0x1{}{}p{:+}", sign, point, digits, exponent)
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_written_as_c_does() {
        // What glibc's printf("%a") writes.
        for (number, text) in [
            (1.0, "0x1p+0"),
            (0.1, "0x1.999999999999ap-4"),
            (-2.5, "-0x1.4p+1"),
            (0.0, "0x0p+0"),
            (1234.5678, "0x1.34a456d5cfaadp+10"),
        ] {
            assert_eq!(super::hexadecimal(number), text);
        }
    }
}
