"""The icon font holds what pages show."""

from fontTools.ttLib import TTFont

from scaling_book.site.icons import glyphs, keep_used_icons, without_unused_rules

RULES = (
    '.fa-bars:before{content:"\\f0c9"}.fa-house:before,.fa-home:before{content:"\\f015"}'
    '.fa-cat:before{content:"\\f6be"}a:before{content:"—"}'
)


def test_rules_of_unused_icons_go() -> None:
    kept = without_unused_rules(RULES, {"bars", "home"})
    assert "fa-bars" in kept
    assert "fa-home" in kept
    assert "fa-cat" not in kept
    assert 'a:before{content:"—"}' in kept


def test_glyphs_are_found_escaped_and_raw() -> None:
    assert glyphs('a{content:"\\f0c9"} b{--icon:"\uf107"} c{content:"\\2014"}') == {0xF0C9, 0xF107}


def test_font_is_cut_to_the_used_glyphs(tmp_path, theme_fonts) -> None:
    static = tmp_path / "_static"
    static.mkdir()
    font = static / "fa-solid-900.woff2"
    font.write_bytes((theme_fonts / font.name).read_bytes())
    (static / "theme.css").write_text(RULES)
    (tmp_path / "index.html").write_text('<i class="fa-solid fa-bars"></i>')
    before = font.stat().st_size
    keep_used_icons(tmp_path)
    assert set(TTFont(font).getBestCmap()) == {0xF0C9}
    assert font.stat().st_size < before / 50
    assert "fa-cat" not in (static / "theme.css").read_text()
    once = font.read_bytes()
    keep_used_icons(tmp_path)
    assert font.read_bytes() == once
