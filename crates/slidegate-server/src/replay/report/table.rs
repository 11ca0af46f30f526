//! Writes text tables with aligned columns.

use std::fmt;

/// Writes a table with a title, left-aligned names and right-aligned numbers.
pub fn write<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    head: [&str; N],
    rows: &[(String, [String; N])],
) -> fmt::Result {
    let head = (title.to_owned(), head.map(str::to_owned));
    let rows = || std::iter::once(&head).chain(rows);
    let name_width = rows().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(|index| {
        rows().map(|(_, cells)| cells[index].len()).max().unwrap_or_default()
    });
    writeln!(f)?;
    for (name, cells) in rows() {
        let mut line = format!("{name:<name_width$}");
        for (cell, width) in cells.iter().zip(widths) {
            line += &format!("  {cell:>width$}");
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Escapes control characters in a value. Clients choose the values, and a terminal would interpret the characters.
pub fn escape_control(value: &str) -> String {
    let escaped = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    value.chars().map(escaped).collect()
}
