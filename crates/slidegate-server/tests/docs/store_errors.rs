//! Tests that `docs/reference/errors.md` documents every class of store errors, with the remedy that the log has.

use slidegate::StoreError;

use crate::docs::read_document;

#[test]
fn documented_store_errors_have_remedies_of_log() {
    let document = read_document("docs/reference/errors.md");
    let (_, section) = document.split_once("\n## Store errors\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `") && !line.contains("`class`"));
    let documented: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(cells.len(), 5, "{row}");
            (cells[0].trim_matches('`').to_owned(), cells[4].to_owned())
        })
        .collect();
    let expected: Vec<(String, String)> = StoreError::classes_with_remedies()
        .map(|(class, remedy)| (class.to_owned(), remedy.to_owned()))
        .collect();
    assert_eq!(documented, expected);
}
