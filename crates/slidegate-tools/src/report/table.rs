//! Writes text tables with aligned columns, and formats their values.

use std::fmt;
use std::time::Duration;

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
pub fn escape_control_chars(value: &str) -> String {
    let escaped = |char: char| {
        if char.is_control() { char.escape_default().to_string() } else { char.to_string() }
    };
    value.chars().map(escaped).collect()
}

/// Returns the duration in milliseconds, rounded up.
pub fn ceil_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
