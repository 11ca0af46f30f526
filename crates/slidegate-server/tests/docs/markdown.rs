//! Parses the fenced code blocks of Markdown documents.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Parser, Tag, TagEnd};

/// A fenced code block of a Markdown document.
#[derive(Debug)]
pub struct FencedBlock {
    /// The text after the opening fence on the same line, such as `yaml wrong`.
    info: String,
    pub text: String,
    /// Line number of the opening fence in the document.
    pub line: usize,
    /// The headings of the enclosing sections, from the document title to the innermost section.
    pub headings: Vec<String>,
}

impl FencedBlock {
    /// Returns the first word after the opening fence, such as `yaml`.
    pub fn language(&self) -> &str {
        self.info.split_whitespace().next().unwrap_or_default()
    }

    /// Returns the words that follow the language, such as `wrong`, or an empty string.
    pub fn modifier(&self) -> &str {
        self.info.strip_prefix(self.language()).unwrap_or_default().trim()
    }
}

/// Returns all fenced code blocks of a document, from the first to the last.
pub fn parse_blocks(document: &str) -> Vec<FencedBlock> {
    let mut blocks: Vec<FencedBlock> = Vec::new();
    let mut headings: Vec<String> = Vec::new();
    let (mut in_heading, mut in_block) = (false, false);
    for (event, range) in Parser::new(document).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                headings.truncate(level as usize - HeadingLevel::H1 as usize);
                headings.push(String::new());
                in_heading = true;
            }
            Event::End(TagEnd::Heading(_)) => in_heading = false,
            Event::Text(text) | Event::Code(text) if in_heading => {
                headings.last_mut().unwrap().push_str(&text);
            }
            Event::Start(Tag::CodeBlock(kind)) => {
                let CodeBlockKind::Fenced(info) = kind else { continue };
                let line = document[..range.start].matches('\n').count() + 1;
                let headings = headings.clone();
                blocks.push(FencedBlock {
                    info: info.to_string(),
                    text: String::new(),
                    line,
                    headings,
                });
                in_block = true;
            }
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Text(text) if in_block => blocks.last_mut().unwrap().text.push_str(&text),
            _ => {}
        }
    }
    blocks
}

#[test]
fn parsed_code_blocks_have_line_and_headings() {
    let document = "# A\n\n```sh x\none\n\ntwo\n```\n\n## `B` c\n\n- item\n\n  ```yaml\n  a: b\n  ```\n\n## D\n\n```\n=\n```\n";
    let found = parse_blocks(document);
    let block = |nth: usize| {
        let FencedBlock { text, line, headings, .. } = &found[nth];
        (found[nth].language(), found[nth].modifier(), text.as_str(), *line, headings.join("/"))
    };
    assert_eq!(block(0), ("sh", "x", "one\n\ntwo\n", 3, "A".to_owned()));
    assert_eq!(block(1), ("yaml", "", "a: b\n", 13, "A/B c".to_owned()));
    assert_eq!(block(2), ("", "", "=\n", 19, "A/D".to_owned()));
}
