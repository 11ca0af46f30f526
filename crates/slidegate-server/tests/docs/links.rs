//! Tests that the links in documents lead to existing files and headings of the project.

use std::fs;
use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag};

use crate::common::project_path;
use crate::docs::{document_paths, read_document};

/// The start of links to files of the project from the READMEs of the crates, which are also shown outside of the
/// repository.
const PROJECT_FILES_URL: &str = "https://github.com/slidegate/slidegate/blob/main/";

/// Returns the paths of all documents with links: README.md and `docs/`, the other documents of the root folder, and the
/// READMEs of the crates.
fn linked_document_paths() -> Vec<String> {
    let crates = fs::read_dir(project_path("crates")).unwrap();
    let readmes = crates
        .map(|folder| format!("crates/{}/README.md", folder.unwrap().file_name().display()))
        .filter(|readme| project_path(readme).exists());
    let others = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned);
    document_paths().into_iter().chain(others).chain(readmes).collect()
}

/// Returns the targets of all links and images in a Markdown text, except for external URLs.
fn find_links(text: &str) -> Vec<String> {
    let links = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.to_string())
        }
        _ => None,
    });
    links.filter(|link| !link.contains("://") || link.starts_with(PROJECT_FILES_URL)).collect()
}

/// Returns the anchor that GitHub generates for a heading: lower case, with hyphens for spaces.
fn heading_anchor(heading: &str) -> String {
    let is_kept = |char: &char| char.is_alphanumeric() || " -_".contains(*char);
    heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-")
}

/// Returns `true` if the target of a link in a document exists. If the link also names a heading, the target file must
/// contain that heading.
fn link_target_exists(document: &str, link: &str) -> bool {
    let (document, link) = match link.strip_prefix(PROJECT_FILES_URL) {
        Some(path_from_root) => ("", path_from_root),
        None => (document, link),
    };
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let target = if file.is_empty() { document.into() } else { folder.join(file) };
    let path = project_path(&target);
    path.exists()
        && (heading.is_empty() || has_heading(&read_document(&target.to_string_lossy()), heading))
}

fn has_heading(text: &str, wanted_anchor: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|heading| heading_anchor(heading.trim_start_matches('#').trim()) == wanted_anchor)
}

#[test]
fn every_link_target_exists() {
    let mut broken = Vec::new();
    let mut found = 0;
    for document in linked_document_paths() {
        let links = find_links(&read_document(&document));
        found += links.len();
        let missing = links.into_iter().filter(|link| !link_target_exists(&document, link));
        broken.extend(missing.map(|link| format!("{document}: {link}")));
    }
    assert!(broken.is_empty(), "{broken:?}");
    assert!(found > 15, "{found} links");
}

/// The site (`make book`) contains exactly the pages that the summary lists.
#[test]
fn index_and_summary_list_every_page_once() {
    let pages = document_paths();
    let pages = pages.iter().filter_map(|page| page.strip_prefix("docs/"));
    let pages: Vec<&str> = pages.filter(|page| *page != "SUMMARY.md").collect();
    let mut listed = find_links(&read_document("docs/SUMMARY.md"));
    listed.sort();
    assert_eq!(listed, pages);

    let index = find_links(&read_document("docs/README.md"));
    let missing: Vec<&&str> = pages
        .iter()
        .filter(|page| **page != "README.md" && !index.contains(&(**page).to_owned()))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
}

#[test]
fn broken_links_are_detected() {
    assert!(
        link_target_exists("README.md", "docs/reference/http.md#bounds")
            && link_target_exists("docs/reference/http.md", "#bounds")
    );
    assert!(link_target_exists("docs/reference/policy.md", "#per-counted-attributes"));
    assert!(
        !link_target_exists("README.md", "docs/reference/http.md#footers")
            && !link_target_exists("README.md", "http.md")
    );
    let from_readme_of_crate = |file: &str| {
        link_target_exists("crates/x/README.md", &format!("{PROJECT_FILES_URL}{file}"))
    };
    assert!(from_readme_of_crate("docs/reference/http.md#bounds"));
    assert!(!from_readme_of_crate("http.md"));
}
