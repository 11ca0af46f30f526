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
