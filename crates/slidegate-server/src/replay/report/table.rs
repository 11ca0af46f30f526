//! Tables for people.

use std::fmt;

/// Names to the left, numbers to the right.
pub fn write<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    head: [&str; N],
    rows: &[(String, [String; N])],
) -> fmt::Result {
    let head = (title.to_owned(), head.map(str::to_owned));
    let rows = || std::iter::once(&head).chain(rows);
    let wide = rows().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(|nth| {
        rows().map(|(_, cells)| cells[nth].len()).max().unwrap_or_default()
    });
    writeln!(f)?;
    for (name, cells) in rows() {
        let mut line = format!("{name:<wide$}");
        for (number, wide) in cells.iter().zip(widths) {
            line += &format!("  {number:>wide$}");
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A client chooses its values, and a terminal obeys control characters.
pub fn escape_control(value: &str) -> String {
    let escaped = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    value.chars().map(escaped).collect()
}
