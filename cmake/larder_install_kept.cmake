# SPDX-License-Identifier: Apache-2.0
# A script of `cmake --install` (larder_install_service): copies files that an administrator edits, and never over what
# is there. The caller sets larder_kept_files, and larder_kept_folder from the prefix on.
cmake_path(SET larder_kept_to NORMALIZE "${CMAKE_INSTALL_PREFIX}/${larder_kept_folder}")
foreach(from IN LISTS larder_kept_files)
  cmake_path(GET from FILENAME name)
  set(there "$ENV{DESTDIR}${larder_kept_to}/${name}")
  if(EXISTS "${there}" OR IS_SYMLINK "${there}")
    file(SHA256 "${from}" new_hash)
    set(hash "")
    if(EXISTS "${there}" AND NOT IS_DIRECTORY "${there}")
      file(SHA256 "${there}" hash)
    endif()
    if(hash STREQUAL new_hash)
      message(STATUS "Up-to-date: ${there}")
      list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${larder_kept_to}/${name}")  # nobody's work is lost with it
      continue()
    endif()
    message(STATUS "Kept: ${there}; it differs from this version's, which is ${name}.new beside it")
    string(APPEND name .new)
  endif()
  # A key may stand in them: systemd reads them as root.
  file(INSTALL DESTINATION "${larder_kept_to}" TYPE FILE RENAME "${name}" FILES "${from}"
    PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ)
endforeach()
