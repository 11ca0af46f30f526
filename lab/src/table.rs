//! Formats tables in Markdown.

use std::fmt;

/// A Markdown table: a header and rows of cells.
pub struct MarkdownTable {
    rows: Vec<Vec<String>>,
}

impl MarkdownTable {
    /// Creates a table without rows. `columns` are the cells of the header.
    pub fn new<T: ToString>(columns: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.add_row(columns);
        table
    }

    /// Adds a row with these cells at the end of the table.
    pub fn add_row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| cell.to_string()).collect());
    }
}

impl fmt::Display for MarkdownTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, row) in self.rows.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if nth == 0 {
                writeln!(f, "|{}", "---|".repeat(row.len()))?;
            }
        }
        Ok(())
    }
}

/// Formats a number with commas between groups of three digits: 10000 becomes 10,000.
pub fn format_with_thousands_separators(count: usize) -> String {
    match count {
        0..1_000 => count.to_string(),
        _ => format!("{},{:03}", format_with_thousands_separators(count / 1_000), count % 1_000),
    }
}
